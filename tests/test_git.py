"""Why git names no commit of a project, and that its absence stops nothing."""

from __future__ import annotations

import re
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from xc_core import git
from xc_core.errors import StorageError
from xc_core.git import Checkout, checkout, setting, trouble


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "inner").mkdir()
    return tmp_path


def test_a_checkout_that_git_reads_is_no_trouble(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert trouble(repository) == trouble(repository / "inner") == ""
    assert trouble(tmp_path_factory.mktemp("plain")) == "", "not in git, which is allowed"


def test_the_checkout_is_that_of_the_folder_also_in_a_hook_of_another_repository(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    subprocess.run(["git", "init", "-q", "--bare"], cwd=other, check=True)
    before = checkout(repository)
    monkeypatch.setenv("GIT_DIR", str(other))
    assert (checkout(repository), trouble(repository)) == (before, "")


def test_a_full_disk_of_temporary_files_is_no_change_of_all_files(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git takes an index that it could not write for an empty one, so each file was recorded as deleted."""
    run, said = git._run, b"fatal: sha1 file 'index.lock' write error. Out of diskspace"

    def full(folder: Path, arguments: tuple[str, ...], *rest: Any) -> subprocess.CompletedProcess[bytes]:
        stops = arguments[0] == "read-tree"
        return subprocess.CompletedProcess([], 128, b"", said) if stops else run(folder, arguments, *rest)

    monkeypatch.setattr(git, "_run", full)
    with pytest.raises(StorageError, match=f"a full disk .* while writing {re.escape(tempfile.gettempdir())}/"):
        checkout(repository)


def test_a_repository_without_a_commit_is_trouble(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert "does not have any commits yet" in trouble(tmp_path)
    assert checkout(tmp_path).commit == "none"


def test_a_checkout_of_somebody_else_is_trouble(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that mounts a folder of the host."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert "dubious ownership" in trouble(repository)
    assert checkout(repository).commit == "none"


def test_git_is_asked_to_speak_english(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages were in two languages, and a full disk of git was not known by its words."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "${LANGUAGE:-tr}: x" >&2\nexit 128\n')
    program.chmod(0o755)
    for name, value in {"LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr:de", "PATH": f"{program.parent}:/bin"}.items():
        monkeypatch.setenv(name, value)
    assert trouble(repository) == "en: x"


def test_a_machine_without_git_has_no_commit_and_no_error(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert trouble(repository) == "git is not installed"
    assert (checkout(repository).commit, setting(repository, "user.name")) == ("none", "")


def test_a_name_that_is_not_utf8_is_a_text_that_a_database_takes() -> None:
    assert Checkout("abc", changed=("na\udcefve.txt",), left_out={"\udcff": "large"}).changes == (
        "not recorded: \ufffd (large); na\ufffdve.txt"
    )


def test_a_setting_that_is_not_utf8_is_a_text_that_a_database_takes(repository: Path) -> None:
    """As the name of a person in an old .gitconfig."""
    with (repository / ".git" / "config").open("ab") as stream:
        stream.write("[user]\n\tname = Jörg\n".encode("latin-1"))
    assert setting(repository, "user.name") == "J\ufffdrg"


@pytest.mark.parametrize("name", [":memory:", "-n", "a[1].py", "na\udcefve.py", "two\nlines"])
def test_a_new_file_is_in_the_diff_whatever_its_name(repository: Path, name: str) -> None:
    """``:memory:`` is what a program leaves that takes sqlite's name of a database in memory for a file."""
    for new in (name, "usual.py"):
        (repository / new).write_text("new\n")
    found = checkout(repository)
    assert set(found.changed) == {name, "usual.py"}
    assert found.diff.count("\n+new\n") == 2


def test_a_new_link_to_a_folder_and_a_repository_in_this_one_are_named_as_not_recorded(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Code of a plug-in may be in both; nothing said that it is missing in the origin of a model."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "part.py").write_text("x = 1\n")
    (repository / "linked").symlink_to(elsewhere)
    (repository / "gone").symlink_to(elsewhere / "nothing")
    (repository / "nested").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=repository / "nested", check=True)
    (repository / "nested" / "part.py").write_text("x = 1\n")
    found = checkout(repository)
    assert found.left_out == {
        "gone": "not readable", "linked": "a link to a folder", "nested/": "a repository of its own",
    }  # fmt: skip
    assert (found.diff, found.changed) == ("", ())


def test_more_new_files_than_a_command_line_can_name_are_in_the_diff(repository: Path) -> None:
    names = [f"inner/{number:0>200}" for number in range(700)]
    for name in names:
        (repository / name).touch()
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 18, before[1]))  # a command line may have a quarter, or 128 KB
    try:
        found = checkout(repository)
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)
    assert set(found.changed) == set(names)


@pytest.mark.parametrize("settings", [{"diff.noprefix": "true"}, {"diff.upper.textconv": "tr a-z A-Z <"}])
def test_a_diff_can_be_applied_whatever_the_settings_of_git(repository: Path, settings: dict[str, str]) -> None:
    (repository / ".gitattributes").write_text("*.ipynb diff=upper\n")
    (repository / "a.ipynb").write_text("old\n")
    for command in (("add", "-A"), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "second")):
        subprocess.run(["git", *command], cwd=repository, check=True)
    for item in settings.items():
        subprocess.run(["git", "config", *item], cwd=repository, check=True)
    (repository / "a.ipynb").write_text("new\n")
    diff = checkout(repository).diff
    (repository / "a.ipynb").write_text("old\n")
    subprocess.run(["git", "apply"], cwd=repository, input=diff, text=True, check=True)
    assert (repository / "a.ipynb").read_text() == "new\n"


@pytest.mark.parametrize("damage", ["read-tree", "diff"])
def test_a_difference_that_git_cannot_read_is_named_as_not_recorded(repository: Path, damage: str) -> None:
    """It was recorded as no difference, or as files that were all deleted."""

    def call(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True, text=True).stdout

    (repository / "a").write_text("1")
    call("add", "a")
    call("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "second")
    (repository / "a").write_text("2")
    digest = call("rev-parse", {"read-tree": "HEAD^{tree}", "diff": "HEAD:a"}[damage]).strip()
    (repository / ".git" / "objects" / digest[:2] / digest[2:]).unlink()
    found = checkout(repository)
    assert (found.changed, found.diff) == ((), "")
    assert found.changes.startswith("not recorded: all that differs from the commit (fatal: ")


def test_a_new_file_that_is_deleted_meanwhile_hides_no_other_difference(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git adds no file if one of those that it is to add is gone: all was named as not recorded."""
    read = git._reason_new

    def deleted(path: Path, name: str) -> str:
        why = read(path, name)
        if name == "b.swp":
            path.unlink()
        return why

    for name in ("a", "b.swp"):
        (repository / name).write_text("x")
    monkeypatch.setattr(git, "_reason_new", deleted)
    assert (checkout(repository).changed, checkout(repository).left_out) == (("a",), {})
