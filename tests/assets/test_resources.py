"""What is recorded in DVC, and when nothing is; the process of a stage."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from assets import worker
from assets.release.promotion import record
from assets.resources import Dvc, Project, Tracking, dvc_address, settings_address
from assets.settings import mlflow_settings
from xc_core.chain import STAGES, Workspace
from xc_core.errors import ConfigError, CorruptError, MissingError, StorageError, UnavailableError
from xc_core.git import tracked
from xc_core.lifecycle import dvc_lock

Commands = list[list[str]]
LOCK = """
stages:
  encoder@toy_ngame:
    outs: [{path: data/toy/ngame/encoder, md5: 0123.dir}]
  settings@toy_ngame:
    outs: [{path: data/toy/ngame/settings, md5: 89ab.dir}]
  corpus@toy:
    outs: [{path: data/toy/corpus, md5: 4567.dir}]
  clusters@toy_ngame:
    cmd: xc run clusters
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Commands]:
    """Return the given result for every command, and the list of the commands; git may not be installed."""

    def answer(code: int = 0, out: str = "", err: str = "", *, installed: bool = True) -> Commands:
        commands: Commands = []

        def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
            assert options["cwd"]
            if command[0] == "git" and not installed:
                raise FileNotFoundError(command[0])
            commands.append(command)
            answers = (out, err) if options.get("text") else (out.encode(), err.encode())
            return subprocess.CompletedProcess(command, code, *answers)

        monkeypatch.setattr(subprocess, "run", run)
        return commands

    return answer


def test_every_stage_has_the_address_of_its_scope() -> None:
    found = {name: dvc_address(name, "toy", "ngame") for name in STAGES}
    per_dataset = {"corpus", "tokens", "leaderboard"}
    assert found == {name: f"{name}@toy" if name in per_dataset else f"{name}@toy_ngame" for name in STAGES}


def test_the_settings_of_every_stage_have_the_address_of_its_scope() -> None:
    found = {name: settings_address(name, "toy", "ngame") for name in STAGES}
    per_dataset = {"corpus", "tokens", "leaderboard"}
    assert found == {name: "dataset-settings@toy" if name in per_dataset else "settings@toy_ngame" for name in STAGES}


@pytest.mark.parametrize(
    ("stage", "addresses", "md5"),
    [
        ("encoder", ["settings@toy_ngame", "encoder@toy_ngame"], "0123.dir"),
        ("corpus", ["dataset-settings@toy", "corpus@toy"], "4567.dir"),
    ],
)
def test_a_stage_is_committed_with_its_settings_and_its_own_hash_returned(
    tmp_path: Path, asked: Callable[..., Commands], stage: str, addresses: list[str], md5: str
) -> None:
    commands = asked()
    (tmp_path / "dvc.lock").write_text(LOCK)
    assert Dvc(root=str(tmp_path)).record(stage, "toy", "ngame") == md5
    dvc = [sys.executable, "-m", "dvc", "--wait-for-lock"]
    assert commands == [[*dvc, "commit", "--force", *addresses]]


@pytest.mark.parametrize("raw", [True, False])
def test_an_artefact_whose_input_is_missing_is_not_recorded(
    tmp_path: Path, asked: Callable[..., Commands], raw: bool
) -> None:
    """dvc refuses the whole commit then: a packed model could not be promoted after its vectors were deleted."""
    workspace = Workspace(tmp_path)
    for name in STAGES.keys() - {"embeddings"}:
        workspace.folder(name, "toy", "ngame").mkdir(parents=True)
    (tmp_path / ".dvc").mkdir()
    if raw:
        workspace.raw("toy").mkdir()
    commands = asked()
    record(workspace, "toy", "ngame")
    committed = {name.partition("@")[0] for name in commands[-1] if "@" in name}
    assert committed == {"dataset-settings", "settings", "tokens", "encoder", "model"} | ({"corpus"} if raw else set())
    assert any("add" in command for command in commands) == raw


@pytest.mark.parametrize("name", ["data/toy/corpus/a.txt", "data/toy/ngame/model/a", "data/toy/settings/corpus.json"])
def test_artefacts_that_git_tracks_are_refused_before_the_work(tmp_path: Path, name: str) -> None:
    """dvc would refuse them after it: output is already tracked by SCM."""
    own, others = tmp_path / name, tmp_path / "data/toy/raw/trn.json"
    for path in (own, others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a")
    dvc = Dvc(root=str(tmp_path))
    dvc.check_git("toy", "ngame")  # no git at all
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", str(others)], cwd=tmp_path, check=True)
    dvc.check_git("toy", "ngame")
    subprocess.run(["git", "add", name], cwd=tmp_path, check=True)
    with pytest.raises(ConfigError, match=f"found artefacts that git tracks: {name}\n"):
        dvc.check_git("toy", "ngame")
    dvc.check_git("toy", None, ["leaderboard"])
    Dvc(root=str(tmp_path), enabled=False).check_git("toy", "ngame")


def test_the_command_that_is_named_for_artefacts_in_git_is_enough(tmp_path: Path) -> None:
    """It names all folders, whole; other files stay in git."""
    names = ["model/scores/a/b", "model/c", "encoder/d", "settings/model.json", "notes/e"]
    for path in (tmp_path / "data/toy/ngame" / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a")
    (tmp_path / "data/toy/ngame/scores").symlink_to(tmp_path / "elsewhere")
    for arguments in (("init", "-q"), ("add", "data")):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    dvc = Dvc(root=str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        dvc.check_git("toy", "ngame")
    command = refused.value.do.partition(" (files stay)")[0]
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    dvc.check_git("toy", "ngame")
    assert tracked(tmp_path, [tmp_path / "data"]) == ["data/toy/ngame/notes/e"]


@pytest.mark.parametrize(("enabled", "stage"), [(False, "encoder"), (True, "leaderboard")])
def test_nothing_is_recorded_without_dvc_or_of_an_artefact_with_timings(
    tmp_path: Path, asked: Callable[..., Commands], enabled: bool, stage: str
) -> None:
    """Without an address, ``dvc commit`` would record the whole project."""
    commands, dvc = asked(), Dvc(root=str(tmp_path), enabled=enabled)
    assert dvc.record(stage, "toy", "ngame") is None
    dvc.commit([stage], "toy", "ngame")
    assert commands == []


@pytest.mark.parametrize(("in_git", "adds"), [("data/toy/raw/train.csv", False), ("", True)])
def test_raw_files_are_added_to_dvc_unless_git_has_them(
    tmp_path: Path, asked: Callable[..., Commands], in_git: str, adds: bool
) -> None:
    commands = asked(out=in_git)
    Dvc(root=str(tmp_path)).track_source(Workspace(tmp_path).raw("toy"))
    assert [command[-1] for command in commands if "add" in command] == (["data/toy/raw"] if adds else [])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_refuses_what_dvc_writes_is_named(
    tmp_path: Path, asked: Callable[..., Commands], number: int
) -> None:
    """The advice was to run the same command of dvc by hand."""
    asked(code=255, err=f"ERROR: unexpected error - [Errno {number}] {os.strerror(number)}\n\nHaving any troubles?")
    with pytest.raises(
        StorageError, match=rf"\(ERROR: .*{number}\].*\) while writing {re.escape(str(tmp_path / '.dvc'))}\n"
    ):
        Dvc(root=str(tmp_path)).commit(["encoder"], "toy", "ngame")


def test_raw_files_are_added_to_dvc_without_git(tmp_path: Path, asked: Callable[..., Commands]) -> None:
    """dvc reads a repository itself."""
    commands = asked(installed=False)
    Dvc(root=str(tmp_path)).track_source(Workspace(tmp_path).raw("toy"))
    assert [command[-2:] for command in commands] == [["add", "data/toy/raw"]]


@pytest.mark.parametrize(
    ("repository", "found"),
    [(True, r"dvc add data/toy/raw failing: tracked by SCM \(git is not installed\)\n"), (False, "tracked by SCM\n")],
)
def test_if_dvc_fails_without_git_the_message_says_so(
    tmp_path: Path, asked: Callable[..., Commands], repository: bool, found: str
) -> None:
    asked(code=1, err="tracked by SCM", installed=False)
    if repository:
        (tmp_path / ".git").mkdir()
    with pytest.raises(UnavailableError, match=found) as caught:
        Dvc(root=str(tmp_path)).track_source(Workspace(tmp_path).raw("toy"))
    assert "git installed" in caught.value.expected


@pytest.mark.parametrize(("line", "found"), [("/data/*/?*", False), ("/data/*/*", True)])
def test_dvc_finds_its_files_beside_data_that_git_ignores(tmp_path: Path, line: str, found: bool) -> None:
    """dvc checkout deletes data whose file it does not find, dvc gc the copy in its cache: nothing was left."""
    own = (Path(__file__).parents[2] / ".gitignore").read_text("utf-8").splitlines()
    assert "/data/*/?*" in own
    (tmp_path / ".gitignore").write_text("\n".join(line if one == "/data/*/?*" else one for one in own))
    files = [tmp_path / "data" / "toy" / name for name in ("acceptance.dvc", "raw.dvc")]
    for file in (tmp_path / ".dvc" / "config", *files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for file in files:
        file.write_text(f"outs: [{{md5: {'0' * 32}.dir, hash: md5, path: {file.stem}}}]\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    done = subprocess.run(["git", "status", "--short", "-uall", "data"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split()[1::2] == ["data/toy/acceptance.dvc", "data/toy/raw.dvc"]
    assert Dvc(root=str(tmp_path)).overlooked() == (files if found else [])


def test_a_project_of_dvc_that_was_copied_without_its_repository_is_named(tmp_path: Path) -> None:
    """xc doctor called it a check that cannot run."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").touch()
    with pytest.raises(UnavailableError, match=r"dvc status failing: .* is not a git repository") as caught:
        Dvc(root=str(tmp_path)).overlooked()
    assert "core.no_scm" in caught.value.expected


def test_without_dvc_raw_files_are_left_alone(tmp_path: Path, asked: Callable[..., Commands]) -> None:
    commands = asked()
    Dvc(root=str(tmp_path), enabled=False).track_source(Workspace(tmp_path).raw("toy"))
    assert commands == []


def test_an_error_of_dvc_is_raised_with_its_message(tmp_path: Path, asked: Callable[..., Commands]) -> None:
    asked(code=1, err="ERROR: no room left")
    with pytest.raises(UnavailableError, match="no room left") as caught:
        Dvc(root=str(tmp_path)).record("encoder", "toy", "ngame")
    assert "dvc commit --force settings@toy_ngame encoder@toy_ngame" in caught.value.do


@pytest.mark.parametrize("left", [b"", LOCK.encode()[:40], b"stages: {a: [\n"], ids=["empty", "cut", "unreadable"])
@pytest.mark.parametrize("before", [LOCK.encode(), None], ids=["there", "new"])
def test_a_lock_file_that_a_stopped_dvc_cut_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None, left: bytes
) -> None:
    """dvc empties the file before it writes it, and refuses a cut one; cancelling a run kills dvc."""
    lock = tmp_path / "dvc.lock"
    if before is not None:
        lock.write_bytes(before)

    def cancelled(*_: Any, **__: Any) -> None:
        lock.write_bytes(left)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", cancelled)
    with pytest.raises(KeyboardInterrupt):
        Dvc(root=str(tmp_path)).record("encoder", "toy", "ngame")
    assert (lock.read_bytes() if lock.exists() else None) == before


def test_a_lock_file_that_another_dvc_was_writing_is_left_to_it(
    tmp_path: Path, asked: Callable[..., Commands], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut at the first look, and whole when that command has ended and its lock is free."""
    lock, whole = tmp_path / "dvc.lock", LOCK.replace("0123", "ffff")
    lock.write_text(LOCK)
    asked(code=1)
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: lock.write_text("stages: [") and run(*a, **k))
    monkeypatch.setattr(dvc_lock, "_dvc_lock", lambda _: nullcontext(lock.write_text(whole)))
    with pytest.raises(UnavailableError):
        Dvc(root=str(tmp_path)).record("encoder", "toy", "ngame")
    assert lock.read_text() == whole


@pytest.mark.parametrize(("before", "left"), [(LOCK, LOCK.replace("0123", "ffff")), ("", "stages: [")])
def test_a_lock_file_that_is_whole_or_was_cut_before_stays(
    tmp_path: Path, asked: Callable[..., Commands], monkeypatch: pytest.MonkeyPatch, before: str, left: str
) -> None:
    """The record of another command that ended meanwhile is not undone."""
    (tmp_path / "dvc.lock").write_text(before)
    asked(code=1)
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: (tmp_path / "dvc.lock").write_text(left) and run(*a, **k))
    with pytest.raises(UnavailableError):
        Dvc(root=str(tmp_path)).record("encoder", "toy", "ngame")
    assert (tmp_path / "dvc.lock").read_text() == left


@pytest.mark.parametrize("address", ["clusters@toy_ngame", "scores@toy_ngame"])
def test_a_stage_that_was_never_recorded_has_no_hash(tmp_path: Path, address: str) -> None:
    assert Dvc(root=str(tmp_path)).recorded(address) is None
    (tmp_path / "dvc.lock").write_text(LOCK)
    assert Dvc(root=str(tmp_path)).recorded(address) is None


@pytest.mark.parametrize("content", ["- nonsense\n", "a: [", "stages: [1]\n", "\0"])
def test_a_lock_file_that_dvc_did_not_write_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "dvc.lock").write_text(content)
    with pytest.raises(CorruptError, match=r"dvc\.lock"):
        Dvc(root=str(tmp_path)).recorded("encoder@toy_ngame")


def test_a_project_that_was_moved_during_a_step_is_not_made_again_at_the_old_place(tmp_path: Path) -> None:
    """DVC failed without a message, MLflow made its lock and a new database where the project had been."""
    root, there = tmp_path / "project", tmp_path / "elsewhere"
    (root / ".dvc").mkdir(parents=True)
    settings = mlflow_settings(root)
    dvc = Dvc.of(root)
    tracking = Tracking(root=str(root), uri=settings.uri, artifacts=settings.artifacts, lock=str(settings.lock))
    root.rename(there)
    for use in (lambda: tracking.client().__enter__(), lambda: dvc.commit(["corpus"], "toy", None)):
        with pytest.raises(MissingError, match="run the same command again where the project is now"):
            use()
    assert not root.exists()


def test_a_project_is_the_workspace_at_its_root(tmp_path: Path) -> None:
    assert Project(root=str(tmp_path)).workspace == Workspace(tmp_path)


# the process of a stage


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("lines")
def test_the_process_of_a_stage_ends_with_the_code_of_xc(ready: Workspace) -> None:
    for dataset, code in (("toy", 0), ("nothing", 66)):
        with pytest.raises(SystemExit) as ended:
            worker.run(["run", "corpus", "--dataset", dataset])
        assert ended.value.code == code


@pytest.mark.usefixtures("lines")
def test_of_several_processes_only_the_first_reports_to_dagster(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("assets.worker.open_dagster_pipes", lambda: opened.append("pipes"))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as ended:
        worker.run(["run", "corpus", "--dataset", "nothing"])
    assert (ended.value.code, opened) == (66, [])
