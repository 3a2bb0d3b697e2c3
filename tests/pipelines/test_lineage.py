"""``xc lineage``: what a version was made from, and the same bytes made again in a second clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from assets.release import rebuilding
from assets.release.accepting import acceptance
from assets.release.ancestry import Lineage
from assets.release.deleting import delete
from assets.release.lineage import lineage
from assets.release.origin import ARTEFACTS
from assets.release.promotion import promote
from assets.release.rebuilding import _environment, _fetch_raw
from tests import forks
from tests.cli.conftest import TOY, Xc, entry, offered
from tests.cli.conftest import xc as xc
from tests.conftest import TOY_CHANGES, make_workspace
from tests.pipelines.conftest import dvc, make_project
from tests.unprivileged import read_only, writable
from xc_core.artifacts import sha256_file
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.registry import TRAIN_STAGES
from xc_core.errors import MissingError, UnavailableError
from xc_core.git import checkout, project_checkout
from xc_core.lifecycle.add_labels import add_labels
from xc_core.lifecycle.update import update
from xc_core.manifests import read_manifest

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = [pytest.mark.chain, pytest.mark.filterwarnings("ignore")]


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project in git with a remote of DVC, an uncommitted change of params.yaml, and a trained model."""
    made = make_project(tmp_path_factory.mktemp("lineage") / "project")
    root = made.root
    for name, value in (("user.name", "Ada"), ("user.email", "ada@example.org")):
        git(root, "config", name, value)
    (root / ".gitignore").write_text("/data/*/?*\n!/data/*/raw.dvc\n!/data/*/acceptance.dvc\n.xc/\n")
    dvc(root, "remote", "add", "--default", "near", "../remote")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first")
    made.params.declare_experiment("toy", "ngame", "ngame", {**TOY_CHANGES, "clusters": {"size": 5}})
    for name in STAGES:
        if name != "leaderboard":
            run_stage(made, name, "toy", "ngame")
    return made


@pytest.fixture
def project(made_once: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of that project; its remote is a folder beside it."""
    root = Path(shutil.copytree(made_once.root, tmp_path / "project", symlinks=True))
    for variable in ("MLFLOW_TRACKING_URI", "XC_MLFLOW_ARTIFACTS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XC_ROOT", str(root))
    commands = (("promote", promote), ("lineage", lineage), ("acceptance", acceptance), ("delete", delete))
    offered(monkeypatch, "xc.commands", *(entry(name, command) for name, command in commands))
    return Workspace(root)


@pytest.mark.slow
def test_a_second_clone_makes_the_same_bytes(
    project: Workspace, xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data was dropped from the project after the promotion: only DVC's remote has it."""
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)
    promoted = xc("promote", "--dataset", "toy", "--recipe", "ngame")
    assert promoted.code == 0, promoted.err
    dvc(project.root, "push", "data/toy/raw.dvc")
    shutil.rmtree(project.raw("toy"))
    shutil.rmtree(project.root / ".dvc" / "cache")
    git(project.root, "checkout", "--quiet", "params.yaml")
    again = tmp_path / "deep" / "again"
    ended = xc("lineage", 1, "--dataset", "toy", "--rebuild", "deep/again")
    assert ended.code == 0, ended.err
    assert f"commit:                     {git(project.root, 'rev-parse', 'HEAD')}\n" in ended.out
    assert "changed since the commit:   " in ended.out and "params.yaml" in ended.out
    assert "made by:                    Ada <ada@example.org>" in ended.out
    assert ended.out.endswith(f"{again}: the same content as version 1\n")
    for name in ("corpus", "encoder", "classifier", "model"):
        first, second = (read_manifest(w.folder(name, "toy", "ngame")) for w in (project, Workspace(again)))
        assert first == second, name
    assert xc("lineage", 1, "--dataset", "toy", "--rebuild", again).code == 64, "a folder that exists"


# versions that kept rows of earlier ones


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Let a rebuild run ``xc`` in this process, which saves the start of thirty others; return what it ran."""
    ran: list[tuple[str, ...]] = []

    def run_xc(environment: dict[str, str], root: Path, command: str, what: str, *options: str) -> None:
        assert (environment["XC_ROOT"], options[-4:]) == (str(root), ("--dataset", "toy", "--recipe", "ngame"))
        ran.append((root.name, command, what, *options[:-4]))
        if command == "add-labels":
            assert add_labels(Workspace(root), Path(what), "toy", "ngame").recipes == ["ngame"]
        else:
            run_stage(Workspace(root), what, "toy", "ngame", refresh="--refresh" in options)

    monkeypatch.setattr(rebuilding, "_run_xc", run_xc)
    return ran


def with_labels(project: Workspace, *names: str) -> None:
    """Add labels to the dataset and to the model."""
    path = project.root.parent / f"{names[0]}.jsonl"
    path.write_text("".join(f'{{"uid": "{name}", "title": "{name}", "content": "{name}0 grass"}}\n' for name in names))
    assert add_labels(project, path, "toy", "ngame").labels == len(names)


def refreshed(project: Workspace, name: str) -> None:
    """Add documents with a new label to the dataset, and refresh the model."""
    folder = project.root.parent / name
    folder.mkdir()
    rows = [{"uid": f"{name}-{i}", "text": f"{name}{i} castle0 n{i}", "labels": [name, "L1"]} for i in range(8)]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    update(project, folder, "toy")
    for stage in TRAIN_STAGES:
        run_stage(project, stage, "toy", "ngame", refresh=True)


def registered(xc: Xc, project: Workspace) -> None:
    ended = xc("promote", "--dataset", "toy", "--recipe", "ngame", "--reason", "a test of lineage")
    assert ended.code == 0, ended.err
    dvc(project.root, "push", "data/toy/raw.dvc")


def lose_data(project: Workspace) -> None:
    """Delete all raw files that the project has, so that only DVC's remote has them."""
    for folder in (project.raw("toy"), project.root / ".dvc" / "cache", project.state / "versions"):
        shutil.rmtree(folder)


def digests(project: Workspace) -> dict[str, str]:
    return {stage: project.digest(stage, "toy", "ngame") for stage in TRAIN_STAGES}


def rebuilt_without_data(xc: Xc, project: Workspace, version: int) -> str:
    """Make the latest version again beside the project, which has lost its data; return what the command prints."""
    before, again = digests(project), project.root.parent / "again"
    lose_data(project)
    ended = xc("lineage", version, *TOY, "--rebuild", again)
    assert ended.code == 0, ended.err
    assert digests(Workspace(again)) == before
    return ended.out


def test_a_version_with_new_labels_is_made_again_from_the_version_that_was_trained(
    project: Workspace, xc: Xc, tmp_path: Path, here: list[tuple[str, ...]]
) -> None:
    """No model was registered between the two commands."""
    registered(xc, project)
    with_labels(project, "meadow")
    with_labels(project, "tunnel", "bridge")
    run_stage(project, "evaluation", "toy", "ngame")
    run_stage(project, "model", "toy", "ngame")
    registered(xc, project)
    printed = rebuilt_without_data(xc, project, 2)
    assert "version 2 made from:        version 1, with new labels in 2 steps\n" in printed
    assert [what[1] for what in here].count("add-labels") == 2
    assert sorted(path.name for path in tmp_path.glob("again*")) == ["again"]
    assert [what for what in here if what[0] == "again" and what[2] in ("classifier", "scores")] == []


def test_a_refreshed_version_is_made_again_from_the_version_that_was_trained(
    project: Workspace, xc: Xc, tmp_path: Path, here: list[tuple[str, ...]]
) -> None:
    registered(xc, project)
    refreshed(project, "meadow")
    registered(xc, project)
    printed = rebuilt_without_data(xc, project, 2)
    assert "version 2 made from:        version 1, refreshed\n" in printed
    first = [what[2:] for what in here if what[0] == "again-version-1"]
    assert first == [(stage,) for stage in TRAIN_STAGES[: TRAIN_STAGES.index("classifier") + 1]]
    [record] = (path for path in project.root.rglob(ARTEFACTS) if '"refreshed": true' in path.read_text())
    record.write_text(record.read_text().replace('"kept_from"', '"other"'))  # as releases before recorded it
    assert "made from:                  not known: version 2, whose classifier kept " in xc("lineage", 2, *TOY).out
    xc("lineage", 2, *TOY, "--rebuild", tmp_path / "more").refused(76, "version 2, whose classifier kept", "train")
    assert not (tmp_path / "more").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_second_clone_repeats_all_steps_to_the_same_bytes(project: Workspace, xc: Xc, tmp_path: Path) -> None:
    """A training, new labels, a refresh with new documents: each with the data of then, which only DVC's remote has."""
    registered(xc, project)
    with_labels(project, "tunnel")
    registered(xc, project)
    refreshed(project, "meadow")
    registered(xc, project)
    printed = rebuilt_without_data(xc, project, 3)
    assert "version 3 made from:        version 2, refreshed\n" in printed
    assert "version 2 made from:        version 1, with new labels\n" in printed
    assert printed.endswith(f"{tmp_path / 'again'}: the same content as version 3\n")


def test_a_rebuild_finds_plug_ins_where_they_are_and_those_of_the_repository_in_the_clone(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PYTHONPATH", "parts:/elsewhere")
    clone = tmp_path / "clone"
    (clone / "xc_core").mkdir(parents=True)
    places = _environment(Workspace(repository), clone)["PYTHONPATH"].split(":")
    assert places == [str(place) for place in (clone, clone / "parts", repository / "parts", Path("/elsewhere"))]
    monkeypatch.delenv("PYTHONPATH")
    assert _environment(Workspace(repository), clone)["PYTHONPATH"] == str(clone)


def test_data_that_dvc_cannot_fetch_is_copied_from_the_project_if_it_is_the_same(tmp_path: Path) -> None:
    project, folder = make_workspace(tmp_path / "project"), tmp_path / "again"
    files = {path.name: {"sha256": sha256_file(path)} for path in project.raw("toy").iterdir()}
    found = Lineage("toy", "ngame", 1, "", {}, {}, {"corpus": {"source": files}})
    (folder / "data" / "toy").mkdir(parents=True)
    dvc(folder, "init", "--no-scm", "--quiet")
    (folder / "data" / "toy" / "raw.dvc").write_text(f"outs:\n- md5: {'1' * 32}.dir\n  path: raw\n  hash: md5\n")
    _fetch_raw(project, found, folder)
    assert {path.name for path in (folder / "data" / "toy" / "raw").iterdir()} == set(files)
    (project.raw("toy") / next(iter(files))).write_text("other\n")
    shutil.rmtree(folder / "data" / "toy" / "raw")
    with pytest.raises(UnavailableError, match=r"`\S+ -m dvc pull data/toy/raw\.dvc` failing: No remote") as caught:
        _fetch_raw(project, found, folder)
    assert caught.value.found.startswith("no raw data of version 1 in git, DVC or the project (")
    assert "dvc push data/toy/raw.dvc" in caught.value.do and "docs/runbook.md#problems" in caught.value.do
    (folder / "data" / "toy" / "raw.dvc").unlink()
    with pytest.raises(MissingError, match=r"^found no raw data of version 1 in git, DVC or the project\n"):
        _fetch_raw(project, found, folder)


def test_large_files_that_are_there_are_hashed_once_and_those_of_the_project_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, raw = make_workspace(tmp_path / "project"), tmp_path / "again" / "data" / "toy" / "raw"
    files = {path.name: {"sha256": sha256_file(path)} for path in project.raw("toy").iterdir()}
    shutil.copytree(project.raw("toy"), raw)
    hashed: list[Path] = []
    monkeypatch.setattr(rebuilding, "sha256_file", lambda path: hashed.append(path) or sha256_file(path))
    _fetch_raw(project, Lineage("toy", "ngame", 1, "", {}, {}, {"corpus": {"source": files}}), tmp_path / "again")
    assert sorted(hashed) == sorted(raw.iterdir())


def test_files_of_another_version_are_replaced_as_a_whole_and_not_written_to(tmp_path: Path) -> None:
    project, raw = make_workspace(tmp_path / "project"), tmp_path / "again" / "data" / "toy" / "raw"
    files = {path.name: {"sha256": sha256_file(path)} for path in project.raw("toy").iterdir()}
    (project.raw("toy") / "README").write_text("not read\n")
    raw.mkdir(parents=True)
    cached = tmp_path / "cached"
    cached.write_text("of DVC's cache\n")
    (raw / "lbl.json.gz").symlink_to(cached)
    (raw / "filter_labels_test.txt").write_text("0 0\n")
    _fetch_raw(project, Lineage("toy", "ngame", 1, "", {}, {}, {"corpus": {"source": files}}), tmp_path / "again")
    assert {path.name: {"sha256": sha256_file(path)} for path in raw.iterdir()} == files
    assert cached.read_text() == "of DVC's cache\n"


def test_a_version_that_is_not_there_is_named(project: Workspace, xc: Xc) -> None:
    xc("lineage", 3, "--dataset", "toy").refused(66, "no database of MLflow")
    assert xc("promote", "--dataset", "toy", "--recipe", "ngame").code == 0
    xc("lineage", 3, "--dataset", "toy").refused(66, "no version 3 of xc-toy")
    xc("lineage", 3, "--dataset", "tou").refused(66, "no dataset 'tou' in params.yaml (nearest: 'toy')")


def test_a_version_has_a_lineage_after_its_dataset_was_deleted(project: Workspace, xc: Xc) -> None:
    assert xc("promote", "--dataset", "toy", "--recipe", "ngame").code == 0
    assert xc("delete", "--dataset", "toy", "--yes").code == 0
    shown = xc("lineage", 1, "--dataset", "toy")
    assert shown.out.startswith("recipe:                     ngame\n"), shown.err


def test_who_may_only_read_a_project_is_shown_the_lineage_of_a_version(project: Workspace, xc: Xc) -> None:
    assert xc("promote", "--dataset", "toy", "--recipe", "ngame").code == 0
    read_only(project.root)
    shown = forks.run("tests.unprivileged:xc", "lineage", 1, "--dataset", "toy", env=dict(os.environ))
    writable(project.root)
    assert shown.stdout.startswith("recipe:                     ngame\n"), shown.stderr


def test_the_acceptance_set_is_shown_kept_and_drawn_again(project: Workspace, xc: Xc, tmp_path: Path) -> None:
    first = xc("acceptance", "--dataset", "toy")
    assert first.out.startswith("toy: acceptance set version 1 (test documents), 40 documents (few: ")
    assert "xc ingest data/toy/raw --dataset toy --acceptance-fraction 0.05" in first.out
    assert "xc acceptance --dataset toy --redraw" in first.out
    assert xc("acceptance", "--dataset", "toy").out == first.out
    assert "version 2 (test documents)" in xc("acceptance", "--dataset", "toy", "--redraw").out
    (tmp_path / "own.jsonl").write_text('{"text": "castle0", "labels": ["L1"]}\n')
    given = xc("acceptance", "--dataset", "toy", "--given", tmp_path / "own.jsonl")
    few = "(few: figures of fewer than 50 are uncertain)"
    assert given.out == f"toy: acceptance set version 3 (given), 1 document {few}\n"
    xc("acceptance", "--dataset", "toy", "--redraw", "--given", "x").refused(64, "both --given and --redraw")


# the state of a checkout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for command in (["init", "-q"], ["config", "user.name", "Ada"], ["config", "user.email", "a@b.c"]):
        git(tmp_path, *command)
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / ".gitignore").write_text("ignored.txt\n")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_rebuild_clones_a_commit_that_no_branch_of_a_shallow_clone_leads_to(
    repository: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``git commit --amend`` there: git clones only what branches lead to. A user may rename ``origin``."""
    folder = tmp_path_factory.mktemp("shallow")
    (folder / "gitconfig").write_text("[clone]\n  defaultRemoteName = upstream\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
    git(folder, "clone", "-q", "--depth=1", f"file://{repository}", "project")
    project, commit = folder / "project", git(repository, "rev-parse", "HEAD")
    git(project, "-c", "user.name=Ada", "-c", "user.email=a@b.c", "commit", "-q", "--amend", "-m", "other")
    own = rebuilding._checked_out(
        Workspace(project), Lineage("toy", "ngame", 1, "", {"git": commit}, {}, {}), folder / "again"
    )
    assert checkout(own).commit == commit
    assert (own / "a.txt").read_text() == "one\n"


def test_a_clean_checkout_has_no_diff(repository: Path) -> None:
    found = checkout(repository)
    assert found.commit == git(repository, "rev-parse", "HEAD")
    assert (found.root, found.changed, found.changes, found.diff) == (repository, (), "nothing", "")


def test_a_diff_holds_changed_staged_deleted_and_new_files_and_changes_nothing(
    repository: Path, tmp_path_factory: Any
) -> None:
    (repository / "a.txt").write_text("two\n")
    (repository / "new é.bin").write_bytes(bytes(range(256)))
    (repository / "staged.txt").write_text("staged\n")
    (repository / "ignored.txt").write_text("no\n")
    (repository / "large.txt").write_text("x" * 1_000_001)
    git(repository, "add", "staged.txt")
    before = git(repository, "status", "--porcelain")
    found = checkout(repository)
    assert git(repository, "status", "--porcelain") == before
    assert set(found.changed) == {"a.txt", "new é.bin", "staged.txt"}
    assert found.changes == f"not recorded: large.txt (larger than 1 MB); {', '.join(found.changed)}"
    clone = tmp_path_factory.mktemp("clone") / "clone"
    git(repository, "clone", "-q", str(repository), str(clone))
    (clone.parent / "diff").write_bytes(found.diff.encode("utf-8", "surrogateescape"))
    git(clone, "apply", str(clone.parent / "diff"))
    for name in found.changed:
        assert (clone / name).read_bytes() == (repository / name).read_bytes()
    assert not (clone / "ignored.txt").exists()


def test_files_that_may_hold_secrets_are_named_and_not_recorded(
    repository: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_POSTGRES_PASSWORD", "hunter2-hunter2")
    (repository / "staged.ini").write_text("[db]\nhost = db\n")
    git(repository, "add", "staged.ini")
    git(repository, "commit", "-qm", "second")
    new = {
        ".env": "XC_POSTGRES_USER=me\n",
        "conf/local.yaml": "host: db\npassword: opensesame\n",
        "step.py": "connect('hunter2-hunter2')\n",
        "plan.py": "password = read_password()\n",
        "vocabulary.json": '{"password": 20786}\n',
    }
    for name, content in new.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(content)
    (repository / "staged.ini").write_text("[db]\nhost = db\npassword = opensesame\n")
    (repository / "a.txt").write_text("two\n")
    found = checkout(repository)
    assert found.left_out == {
        "staged.ini": "holds a password, a key or a login",
        ".env": "named as files with secrets are",
        "conf/local.yaml": "holds a password, a key or a login",
        "step.py": "holds the value of XC_POSTGRES_PASSWORD",
    }
    assert set(found.changed) == {"a.txt", "plan.py", "vocabulary.json"}
    assert all(name in found.changes for name in (*new, "staged.ini"))
    assert not any(secret in found.diff for secret in ("opensesame", "hunter2", "XC_POSTGRES_USER"))
    clone = tmp_path_factory.mktemp("clone") / "clone"
    git(repository, "clone", "-q", str(repository), str(clone))
    (clone.parent / "diff").write_text(found.diff)
    git(clone, "apply", str(clone.parent / "diff"))
    assert (clone / "plan.py").read_text() == new["plan.py"]


def test_a_file_that_cannot_be_read_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "gone.txt").write_text("text\n")

    def fails(_: Path) -> bytes:
        raise PermissionError("denied")

    monkeypatch.setattr(Path, "read_bytes", fails)
    assert checkout(repository).left_out == {"gone.txt": "not readable"}


def test_outside_git_there_is_no_commit(tmp_path: Path) -> None:
    assert checkout(tmp_path).commit == "none"


def test_a_project_outside_git_has_the_checkout_of_the_library(repository: Path, tmp_path_factory: Any) -> None:
    assert project_checkout(repository) == checkout(repository)
    assert project_checkout(tmp_path_factory.mktemp("outside")) == checkout(Path(__file__).parent)
