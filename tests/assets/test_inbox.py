"""The inbox of a dataset: when its files are complete, how they are ingested, and where they are moved then."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from assets.inbox import archive, archives, inbox, ingest_arguments, state, waits
from tests.cli.conftest import Xc
from tests.conftest import ToyWorld
from xc_core.chain import Workspace
from xc_core.data.ingest import IngestConfig
from xc_core.errors import BusyError, MissingError, MovedError, StorageError
from xc_core.locks import locked

THEN = 1_000_000
"""When the files of these tests were last changed, in seconds."""
RESTED = THEN + 20.0


def put(folder: Path, name: str, content: str = "text", changed: float = THEN) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (changed, changed))


def test_the_inbox_lies_beside_the_raw_files(tmp_path: Path) -> None:
    assert inbox(Workspace(tmp_path), "toy") == tmp_path / "data" / "toy" / "inbox"


# its state


def test_no_folder_and_a_folder_without_files_have_no_state(tmp_path: Path) -> None:
    assert state(tmp_path / "absent", RESTED) is None
    (tmp_path / "empty").mkdir()
    assert state(tmp_path, RESTED) is None


def test_an_inbox_whose_files_are_taken_out_meanwhile_is_still_being_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "train.csv")
    put(tmp_path, "test.csv")
    is_file = Path.is_file

    def taken_out(path: Path) -> bool:
        there = is_file(path)
        path.unlink()
        return there

    monkeypatch.setattr(Path, "is_file", taken_out)
    assert state(tmp_path, RESTED) is None


@pytest.mark.parametrize(
    ("now", "complete"), [(THEN, False), (THEN + 19.999, False), (THEN + 20.0, True), (THEN + 9e5, True)]
)
def test_a_file_is_complete_twenty_seconds_after_its_last_change(tmp_path: Path, now: float, complete: bool) -> None:
    put(tmp_path, "train.csv")
    assert (state(tmp_path, now) is not None) is complete


def test_one_new_file_holds_back_all_others(tmp_path: Path) -> None:
    put(tmp_path, "train.csv")
    put(tmp_path, "deep/down/test.csv", changed=THEN + 15)
    assert state(tmp_path, RESTED) is None
    assert state(tmp_path, RESTED + 15) is not None


def test_a_file_dated_in_the_future_is_not_waited_for_until_then(tmp_path: Path) -> None:
    """It was copied with the time of a clock that is ahead, or the clock was set back; a sensor looks twice."""
    put(tmp_path, "train.csv", changed=RESTED + 3600)
    assert state(tmp_path, RESTED) is not None
    put(tmp_path, "train.csv", changed=RESTED + 19)  # a server of files whose clock is ahead a little
    assert state(tmp_path, RESTED) is None


@pytest.mark.parametrize(
    "name", [".train.csv.part", "sub/.DS_Store", ".git/index", "sub/.cache/deep/train.csv", ".part/.hidden"]
)
def test_hidden_files_and_files_in_hidden_folders_do_not_count(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    assert state(tmp_path, RESTED) is None
    put(tmp_path, "train.csv")
    first = state(tmp_path, RESTED)
    put(tmp_path, name, "other text", changed=RESTED)
    assert state(tmp_path, RESTED) == first is not None


def test_a_hidden_folder_above_the_inbox_does_not_hide_its_files(tmp_path: Path) -> None:
    put(tmp_path / ".hidden" / "inbox", "train.csv")
    assert state(tmp_path / ".hidden" / "inbox", RESTED) is not None


def test_the_state_is_of_names_sizes_and_times(tmp_path: Path) -> None:
    def of(name: str = "a/train.csv", content: str = "text", changed: float = THEN) -> str | None:
        folder = tmp_path / f"{name}{len(content)}{changed}".replace("/", "-")
        put(folder, name, content, changed)
        return state(folder, RESTED)

    states = [of(), of(name="train.csv"), of(name="a/test.csv"), of(content="texts"), of(changed=THEN - 1)]
    assert len(set(states)) == 5
    assert all(found is not None and len(found) == 16 for found in states)
    put(tmp_path / "again", "a/train.csv")
    assert state(tmp_path / "again", RESTED + 100) == states[0], "the same files, in another place and at another time"


def test_a_run_is_refused_unless_the_inbox_is_as_it_was(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = inbox(workspace, "toy")
    put(folder, "train.csv")
    wanted = state(folder, RESTED)
    assert wanted is not None
    assert waits(workspace, "toy", wanted)
    for name in ("test.csv", "train.csv"):
        put(folder, name, "other text")
        with pytest.raises(MovedError, match="an inbox of toy that changed after this run was requested"):
            waits(workspace, "toy", wanted)


def test_a_run_reads_what_it_was_requested_for_whatever_the_clock_says(tmp_path: Path) -> None:
    """A clock that was set back to the time of a file, as by NTP: the run failed, and the sensor started no other."""
    workspace = Workspace(tmp_path)
    put(inbox(workspace, "toy"), "train.csv", changed=time.time())
    wanted = state(inbox(workspace, "toy"), time.time() + 60)
    assert wanted is not None and waits(workspace, "toy", wanted)


# ingesting it


def test_a_dataset_with_default_settings_is_ingested_without_options(fresh: Workspace) -> None:
    arguments = ingest_arguments(fresh, "toy")
    assert arguments == ["ingest", str(inbox(fresh, "toy")), "--dataset", "toy", "--replace"]


def test_every_setting_of_a_dataset_becomes_an_option(fresh: Workspace) -> None:
    config = IngestConfig(
        layout="xc-json",
        validation_fraction=0.25,
        filters="none",
        propensity="amazon",
        allow=("empty-text", "shared-texts"),
        max_line_bytes=5000,
        label_separator="|",
        test_fraction=0.5,
    )
    fresh.params.declare_dataset("toy", config)
    options = ingest_arguments(fresh, "toy")[5:]
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--layout": "xc-json",
        "--validation-fraction": "0.25",
        "--filters": "none",
        "--propensity": "amazon",
        "--allow": "shared-texts",
        "--max-line-bytes": "5000",
        "--label-separator": "|",
        "--test-fraction": "0.5",
    }
    assert [b for a, b in zip(options[::2], options[1::2], strict=True) if a == "--allow"] == list(config.allow)


def test_xc_ingests_the_inbox_with_these_arguments_and_keeps_the_settings(xc: Xc, fresh: Workspace) -> None:
    fresh.params.declare_dataset("toy", IngestConfig(validation_fraction=0.25, allow=("empty-text", "unseen-labels")))
    before = fresh.params.read()
    ToyWorld.make(documents=230, tests=50).write(inbox(fresh, "toy"))
    ended = xc(*ingest_arguments(fresh, "toy"))
    assert ended.code == 0, ended.err
    assert fresh.params.read() == before
    assert (fresh.raw("toy") / "trn.json.gz").read_bytes() == (inbox(fresh, "toy") / "trn.json.gz").read_bytes()


# archiving it


def archived(workspace: Workspace) -> Path:
    """Archive the inbox of toy as it is."""
    now = state(inbox(workspace, "toy"), math.inf)
    assert now is not None
    return archive(workspace, "toy", now)


def test_ingested_files_are_kept_and_hidden_ones_stay_where_they_arrive(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = inbox(workspace, "toy")
    put(folder, "deep/train.csv", "kept")
    put(folder, ".arriving/test.csv", "half")
    put(folder, "deep/.more.csv.aX3f", "half")
    wanted = state(folder, math.inf)
    kept = archived(workspace)
    assert kept == tmp_path / ".xc" / "inbox" / "toy" / str(wanted)
    assert [path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()] == ["deep/train.csv"]
    assert (kept / "deep" / "train.csv").read_text() == "kept"
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        ".arriving/test.csv",
        "deep/.more.csv.aX3f",
    ]


def test_an_inbox_that_is_a_link_stays_one(tmp_path: Path) -> None:
    """Files arrive in the folder that it names; a folder in its place would wait for them for ever."""
    workspace, real = Workspace(tmp_path), tmp_path / "srv" / "toy"
    real.mkdir(parents=True)
    inbox(workspace, "toy").parent.mkdir(parents=True)
    inbox(workspace, "toy").symlink_to(real)
    for content in ("1", "22"):
        put(real, "train.csv", content)
        kept = archived(workspace)
        assert (kept / "train.csv").read_text() == content
        assert not kept.is_symlink()
        assert inbox(workspace, "toy").is_symlink()
        assert list(real.parent.rglob("*")) == [real]


def test_an_inbox_that_is_a_mount_point_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system does not rename it (EBUSY)."""
    workspace = Workspace(tmp_path)
    put(inbox(workspace, "toy"), "train.csv")

    def busy(path: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(StorageError, match=r"mount point, .*inbox: its files were ingested(.|\n)*inbox a link"):
        archived(workspace)
    assert (inbox(workspace, "toy") / "train.csv").is_file()


def test_the_emptied_inbox_lets_in_whom_it_did_before(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    put(inbox(workspace, "toy"), "train.csv")
    inbox(workspace, "toy").chmod(0o2770)
    if os.geteuid() == 0:
        os.chown(inbox(workspace, "toy"), 1234, 4321)
    before = inbox(workspace, "toy").stat()
    archived(workspace)
    after = inbox(workspace, "toy").stat()
    assert before.st_ino != after.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_several_drops_are_archived_side_by_side(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    kept = {}
    for number in ("1", "22"):
        put(inbox(workspace, "toy"), "train.csv", number)
        kept[archived(workspace)] = number
    assert {folder: (folder / "train.csv").read_text() for folder in kept} == kept
    assert len(kept) == 2


def test_only_the_last_drops_are_kept(tmp_path: Path) -> None:
    """Each drop is a whole dataset."""
    workspace, kept = Workspace(tmp_path), []
    for number in range(4):
        put(inbox(workspace, "toy"), "train.csv", "x" * number, changed=THEN - number)
        wanted = state(inbox(workspace, "toy"), math.inf)
        assert wanted is not None
        kept.append(archive(workspace, "toy", wanted, keep=2))
    assert [path.is_dir() for path in kept] == [False, False, True, True]


def test_a_drop_of_an_older_time_is_the_last_one_if_it_came_last(tmp_path: Path) -> None:
    """A folder may be copied with its times."""
    workspace, kept = Workspace(tmp_path), []
    for number in range(3):
        put(inbox(workspace, "toy"), "train.csv", "x" * number, changed=THEN - number)
        os.utime(inbox(workspace, "toy"), (THEN - number, THEN - number))
        wanted = state(inbox(workspace, "toy"), math.inf)
        assert wanted is not None
        kept.append(archive(workspace, "toy", wanted, keep=1))
        assert kept[-1].is_dir()
    assert [path.is_dir() for path in kept] == [False, False, True]


def test_a_drop_is_the_last_one_although_the_clock_was_set_back(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for number in range(2):
        put(inbox(workspace, "toy"), "train.csv", changed=THEN + number)
        wanted = state(inbox(workspace, "toy"), math.inf)
        assert wanted is not None
        kept = archive(workspace, "toy", wanted, keep=1)
        assert [path.name for path in kept.parent.iterdir()] == [kept.name]
        os.utime(kept, (9e9, 9e9))


def test_the_number_of_archives_is_the_setting_of_a_dataset_that_is_known(fresh: Workspace) -> None:
    assert (archives(fresh, "toy"), archives(fresh, "new")) == (3, 3)
    params = fresh.params.read()
    params["datasets"]["toy"]["update"] = {"keep": 5}
    fresh.params.path.write_text(json.dumps(params))
    assert archives(fresh, "toy") == 5


def test_a_run_of_a_drop_that_was_replaced_says_so(tmp_path: Path) -> None:
    workspace, drops = Workspace(tmp_path), []
    for number in range(2):
        put(inbox(workspace, "toy"), "train.csv", "x" * number, changed=THEN - number)
        drops.append(str(state(inbox(workspace, "toy"), math.inf)))
        archive(workspace, "toy", drops[-1], keep=1)
    put(inbox(workspace, "toy"), ".gitkeep")
    with pytest.raises(MovedError, match=r"an empty inbox of toy and no archive .* later files replaced") as caught:
        waits(workspace, "toy", drops[0])
    assert "sensor" not in caught.value.do
    assert f"put the files into {inbox(workspace, 'toy')} again" in caught.value.do
    put(inbox(workspace, "toy"), "train.csv", changed=RESTED)
    with pytest.raises(MovedError, match="that changed after this run was requested"):
        waits(workspace, "toy", drops[0])


def test_what_a_killed_process_set_aside_is_deleted_by_the_next_drop(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    put(inbox(workspace, "toy"), "train.csv")
    first = archived(workspace)
    aside = first.rename(first.with_name(f".{first.name}"))
    other = first.with_name(".other")
    other.mkdir()
    put(inbox(workspace, "toy"), "train.csv", "another drop")
    kept = archived(workspace)
    assert kept.is_dir() and other.is_dir() and not aside.exists()


def test_a_drop_that_comes_again_is_archived_although_a_killed_process_left_its_earlier_archive(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    put(inbox(workspace, "toy"), "train.csv")
    kept = archived(workspace)
    left = kept.with_name(f".{kept.name}")
    put(left, "train.csv")
    put(inbox(workspace, "toy"), "train.csv")
    assert archived(workspace) == kept
    assert kept.is_dir() and not left.exists()


def test_two_processes_do_not_archive_one_dataset_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(tmp_path)
    put(inbox(workspace, "toy"), "train.csv")
    monkeypatch.setattr("assets.inbox._ARCHIVING_SECONDS", 0.1)
    with locked(workspace.state / "lock" / "inbox@toy", "a test"), pytest.raises(BusyError, match="archiving of the"):
        archived(workspace)
    assert archived(workspace).is_dir()


def test_nothing_is_archived_at_the_old_place_of_a_project_that_was_moved(tmp_path: Path) -> None:
    """It made the folder of the lock there, and then an inbox and an archive."""
    workspace = Workspace(tmp_path / "project")
    put(inbox(workspace, "toy"), "train.csv")
    ingested = state(inbox(workspace, "toy"), math.inf)
    assert ingested is not None
    workspace.root.rename(tmp_path / "moved")
    with pytest.raises(MissingError, match="which was moved or deleted since this command began"):
        archive(workspace, "toy", ingested)
    assert not workspace.root.exists()


def test_the_archiving_waits_for_that_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move to another disk takes minutes."""
    workspace, asked = Workspace(tmp_path), list[float]()
    put(inbox(workspace, "toy"), "train.csv")
    monkeypatch.setattr("assets.inbox.locked", lambda *_, patience: asked.append(patience) or nullcontext())
    assert archived(workspace).is_dir()
    assert asked == [600.0]


@pytest.mark.parametrize("name", ["train.csv", "more.csv"])
def test_files_that_come_or_change_during_the_ingest_stay_in_the_inbox(tmp_path: Path, name: str) -> None:
    workspace = Workspace(tmp_path)
    folder = inbox(workspace, "toy")
    put(folder, "train.csv")
    wanted = state(folder, math.inf)
    assert wanted is not None
    put(folder, name, "what the ingest has not read")
    with pytest.raises(MovedError, match="an inbox of toy that changed while its files were ingested"):
        archive(workspace, "toy", wanted)
    assert (folder / name).read_text() == "what the ingest has not read"
    with pytest.raises(MovedError):
        waits(workspace, "toy", wanted)
    assert state(folder, RESTED) not in (None, wanted)


def test_a_drop_that_was_archived_is_ingested_again_only_if_it_comes_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    put(inbox(workspace, "toy"), "train.csv")
    wanted = archived(workspace).name
    assert not waits(workspace, "toy", wanted)
    put(inbox(workspace, "toy"), "train.csv")
    assert waits(workspace, "toy", wanted)
    assert archived(workspace).name == wanted
    assert not waits(workspace, "toy", wanted)


@pytest.mark.parametrize("changed", [False, True])
def test_a_run_that_was_killed_while_it_archived_settles_the_inbox(tmp_path: Path, changed: bool) -> None:
    workspace = Workspace(tmp_path)
    folder = inbox(workspace, "toy")
    put(folder, "train.csv")
    wanted = str(state(folder, math.inf))
    if changed:
        put(folder, "late.csv")
    (tmp_path / ".xc" / "inbox" / "toy").mkdir(parents=True)
    folder.rename(folder.with_name(f".inbox.{wanted}"))
    if changed:
        with pytest.raises(MovedError):
            waits(workspace, "toy", wanted)
        assert sorted(path.name for path in folder.iterdir()) == ["late.csv", "train.csv"]
    else:
        assert not waits(workspace, "toy", wanted)
        assert folder.is_dir() and not list(folder.iterdir())
    assert not folder.with_name(f".inbox.{wanted}").exists()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Workspace]:
    """Return a project whose .xc is on another disk."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other disk")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        (tmp_path / ".xc").symlink_to(folder)
        yield Workspace(tmp_path)


def test_files_are_archived_on_another_disk_too(elsewhere: Workspace) -> None:
    put(inbox(elsewhere, "toy"), "deep/train.csv", "kept")
    kept = archived(elsewhere)
    assert (kept / "deep" / "train.csv").read_text() == "kept"
    assert not list(inbox(elsewhere, "toy").iterdir())


def test_if_the_other_disk_is_full_the_next_run_archives_all(
    elsewhere: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was a list of those of all files, and the next run put the files beside the few that were copied."""
    folder, send = inbox(elsewhere, "toy"), os.sendfile

    def full(out: int, source: int, *places: int) -> int:
        if os.fstat(source).st_size > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return send(out, source, *places)

    for name in ("a.csv", "b.csv"):
        put(folder, name, content=name * (name == "b.csv") or "text")
    wanted = str(state(folder, math.inf))
    with monkeypatch.context() as patch, pytest.raises(StorageError, match=rf"full disk .* while .*/{wanted}\n"):
        patch.setattr(os, "sendfile", full)
        archived(elsewhere)
    assert not waits(elsewhere, "toy", wanted)
    kept = elsewhere.state / "inbox" / "toy" / wanted
    assert sorted(path.name for path in kept.iterdir()) == ["a.csv", "b.csv"]
