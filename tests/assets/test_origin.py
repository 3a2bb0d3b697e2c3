"""Where a registered model comes from: who made it, and DVC's hash of its data."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from assets.release import origin
from tests.assets.conftest import failing
from xc_core import git


@pytest.mark.parametrize(
    ("name", "mail", "person"), [("Ada", "ada@here", "Ada <ada@here>"), ("Ada", "", "Ada"), ("", "ada@here", "account")]
)
def test_a_model_was_made_by_the_user_of_git_or_else_by_the_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, mail: str, person: str
) -> None:
    settings = {"user.name": name, "user.email": mail}
    monkeypatch.setattr(git, "setting", lambda root, key: settings[key])
    monkeypatch.setattr(getpass, "getuser", lambda: "account")
    assert origin.person(tmp_path) == person


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no user")])
def test_an_account_without_a_name_stops_no_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    """As in a container with a user id that /etc/passwd does not list."""
    monkeypatch.setattr(git, "setting", lambda root, key: "")
    monkeypatch.setattr(getpass, "getuser", failing(error))
    assert origin.person(tmp_path) == "unknown"


@pytest.mark.parametrize(
    ("content", "md5"),
    [("outs:\n- md5: abc.dir\n  path: raw\n", "abc.dir"), ("outs:\n- path: raw\n", "not in DVC"),
     ("", "not in DVC"), (None, "not in DVC")],
)  # fmt: skip
def test_the_data_have_the_hash_of_dvc(tmp_path: Path, content: str | None, md5: str) -> None:
    raw = tmp_path / "raw.dvc"
    if content is not None:
        raw.write_text(content)
    assert origin._md5(raw) == md5
