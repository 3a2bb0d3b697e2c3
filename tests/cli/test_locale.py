"""Names of files in a locale without UTF-8, and names that are not UTF-8: libraries open neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import TOY, Xc
from tests.conftest import make_workspace
from xc_core.causes import check_name
from xc_core.chain import Workspace
from xc_core.errors import ConfigError
from xc_core.pretrained import locate

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ADVICE = "do this:  set LC_ALL=C.UTF-8 and unset PYTHONUTF8, or use a path without such characters"


@pytest.mark.parametrize(
    "command", ["status", "ingest {} --dataset other", "predict --bundle {} river", "predict --dataset toy --input {}"]
)
def test_in_a_locale_without_utf_8_a_path_with_an_umlaut_is_refused(
    command: str, tmp_path: Path, starting: None
) -> None:
    """Libraries did not find it, or could not be given it, and that was called a fault of xc (70)."""
    root = tmp_path / ("Änderung" if "{}" not in command or "ingest" in command else "project")
    root.mkdir()
    make_workspace(root)
    named = root / "data" / "toy" / "raw" if "ingest" in command else tmp_path / "Prüfung"
    arguments = [sys.executable, "-m", "xc_core.cli.main", *(part.format(named) for part in command.split())]
    environment = {**os.environ, **ASCII, "XC_ROOT": str(root)}
    done = subprocess.run(arguments, env=environment, capture_output=True, encoding="utf-8", check=False)
    found = named if "predict" in command else root
    assert done.returncode == 78, done.stderr
    assert f"xc: found {found} in a process that reads names as ascii, because of its locale\n" in done.stderr
    assert ADVICE in done.stderr


def test_in_a_locale_without_utf_8_data_with_an_umlaut_in_their_path_are_read(tmp_path: Path, starting: None) -> None:
    """Only what is inside the project, and a file to answer or to write, is opened by libraries."""
    source = make_workspace(tmp_path / "project").raw("toy").rename(tmp_path / "Quelle-ü")
    arguments = [sys.executable, "-m", "xc_core.cli.main", "ingest", source, "--dataset", "other"]
    environment = {**os.environ, **ASCII, "XC_ROOT": str(tmp_path / "project")}
    done = subprocess.run(arguments, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_utf_8_is_refused(xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xc4d"))
    folder.mkdir()
    make_workspace(folder)
    expected = (78, r"b\xc4d, a name that is not UTF-8", "rename that file or folder")
    monkeypatch.setenv("XC_ROOT", str(folder))
    xc("status").refused(*expected)
    monkeypatch.delenv("XC_ROOT")
    monkeypatch.chdir(folder)
    xc("status").refused(*expected)
    make_workspace(tmp_path / "project")
    monkeypatch.setenv("XC_ROOT", str(tmp_path / "project"))
    xc("predict", *TOY, "--output", "out.jsonl").refused(78, r"b\xc4d/out.jsonl, a name that is not UTF-8", "rename")
    assert xc("status", *TOY).code == 1, "the current folder alone is not opened"


def test_a_name_that_the_locale_reads_as_other_characters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latin-1 reads any bytes: the path is there, but a library asks for another one."""
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    monkeypatch.setattr(os, "fsencode", lambda path: str(path).encode("latin-1"))
    utf_8, other = (Path("/x/für".encode(encoding).decode("latin-1")) for encoding in ("utf-8", "latin-1"))
    with pytest.raises(ConfigError, match=r"^found /x/für in a process that reads names as iso8859-1"):
        check_name(utf_8)
    with pytest.raises(ConfigError, match=r"^found /x/f\\xfcr, a name that is not UTF-8"):
        check_name(other)
    check_name(Path("/x/plain"))


def test_a_model_in_a_folder_whose_name_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xc4"))
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"/m\\xc4, a name that is not UTF-8"):
        locate(str(folder))


def test_a_name_that_was_given_to_a_library_is_no_fault_of_xc(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever names the file; half of a character in a text remains one."""
    fails: list[str] = []
    monkeypatch.setattr(Workspace, "params", property(lambda _: fails[-1].encode()))
    fails.append(os.fsdecode(b"models/b\xc4d"))
    xc("status").refused(78, r"models/b\xc4d, a name that is not UTF-8", "rename")
    fails.append("half of a character: \ud83d")
    assert xc("status").code == 70
    monkeypatch.setattr(Workspace, "params", property(lambda _: "modell-ü".encode("ascii")))
    assert xc("status").code == 70
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    xc("status").refused(78, "modell-ü in a process that reads names as ascii", "LC_ALL")
