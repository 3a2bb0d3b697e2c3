"""The changelog of a dataset, the copies of its files that were replaced, and the guard against losing rows.

``data/<dataset>/changes/0001.json`` says what came and went. ``.xc/versions/<dataset>/0001/`` has the raw files as they
were before that change.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Set
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from xc_core.artifacts import write_file
from xc_core.canonical import canonical
from xc_core.chain.names import CHANGES
from xc_core.chain.workspace import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.difference import Difference
from xc_core.errors import CorruptError, MissingError, RefusedError, first_line
from xc_core.leftovers import claimed, drop
from xc_core.leftovers import work as temporary
from xc_core.linked import link_file
from xc_core.manifests import read_manifest

VERSIONS: Final = "versions"
_REQUIRED: Final = frozenset(("number", "what", "corpus", "documents", "labels"))
"""Parts that every entry has."""
_FORGOTTEN: Final = "(forgotten)"
_WITH_UIDS: Final = ("documents", "labels", "moved")
"""Parts of an entry that list uids. A uid may be any word, such as the name of a command."""
_MAX_SHOWN: Final = 3
"""Uids that a message names."""


class Kind(StrEnum):
    """What made a change; an entry holds it under ``what``."""

    REPLACE = "replace"
    SETTINGS = "settings"
    """The same files, read with other settings."""
    UPDATE = "update"
    FORGET = "forget"
    LABELS = "labels"
    """Labels were added at the end: documents and their order stay."""


def check_loss(difference: Difference, allowed: float, dataset: str, kind: Kind, *, split: bool) -> None:
    """Raise RefusedError if more than the share ``allowed`` of documents, labels, pairs or test documents would go.

    Test documents in another split count if ``split`` is True: other settings of the split may move them on purpose.
    """
    pairs, tests = difference.pairs, difference.tests
    allow = "" if kind == Kind.UPDATE else "pass --allow-loss {} to xc ingest, or "
    add = "" if kind == Kind.UPDATE else f"; to add rows: xc update FOLDER --dataset {dataset}"
    for name, lost, before, removed in (
        ("documents", len(difference.documents.removed), difference.documents.before, difference.documents.removed),
        ("labels", len(difference.labels.removed), difference.labels.before, difference.labels.removed),
        ("pairs", pairs["lost"], pairs["before"], []),
        ("test documents", tests["lost" if split else "gone"], tests["before"], []),
    ):
        loss, tests_go = lost / max(before, 1), name == "test documents"
        if not loss <= allowed:  # so that nan allows nothing
            first = f"; the first: {', '.join(removed[:_MAX_SHOWN])}" if removed else ""
            some = f"{lost:,} of the {before:,} {name} of {dataset} ({loss:.1%}{first})"
            raise RefusedError(
                f"new files in which {some} are gone or in another split" if tests_go else f"new files without {some}",
                expected=f"at most {allowed:.1%} of the {name} gone (setting datasets.{dataset}.update.allow_loss); "
                "the dataset is unchanged",
                do=f"{allow.format(_rounded_up_percent(loss))}change the setting, if they should go{add}",
            )


def _rounded_up_percent(share: float) -> float:
    return min(1.0, (int(share * 100) + 1) / 100)


def next_number(workspace: Workspace, dataset: str) -> int:
    """Return the number of the next change of a dataset, from 1: one that no entry and no kept version has."""
    paths = (*_entry_files(workspace.home(dataset) / CHANGES), *kept_versions(workspace, dataset))
    return 1 + max((int(path.stem) for path in paths), default=0)


def entries(workspace: Workspace, dataset: str) -> list[dict[str, Any]]:
    """Return the changelog of a dataset, the oldest change first."""
    return [_read_entry(path) for path in _entry_files(workspace.home(dataset) / CHANGES)]


def last(corpus: Path) -> dict[str, Any] | None:
    """Return the last change of the corpus at this folder; None if there was none."""
    files = _entry_files(corpus.with_name(CHANGES))
    return _read_entry(files[-1]) if files else None


def is_lost(folder: Path) -> bool:
    """Return True if there is a changelog at this folder without any entry: it is made with the first one."""
    return folder.is_dir() and not _entry_files(folder)


def gap(corpus: Path) -> str:
    """Return a note if there is a changelog, but no entry of the present version of the corpus; otherwise nothing."""
    folder = corpus.with_name(CHANGES)
    try:
        digest = read_manifest(corpus).digest()
    except (MissingError, CorruptError):
        return ""
    latest_first = reversed(_entry_files(folder))
    if not folder.is_dir() or any(digest in _read_entry(path)["corpus"].values() for path in latest_first):
        return ""
    return (
        "the changelog has no record of this version: files or settings were changed by hand, or the newest files of "
        f"{folder} are missing; if a backup has them, restore them, so that xc drift knows what is new"
    )


def entry(
    number: int, kind: Kind, corpora: tuple[Corpus, Corpus], settings: tuple[Any, Any], difference: Difference
) -> dict[str, Any]:
    """Return the entry of a change from one corpus to another; ``settings`` are those before and after it."""
    (before, after), (old, new) = corpora, settings
    return {
        "number": number,
        "what": kind,
        "corpus": {"before": before.digest, "after": after.digest},
        "settings": {"before": old, "after": new},
        **asdict(difference),
    }


def only_labels(workspace: Workspace, dataset: str, old_digest: str, new_digest: str) -> bool:
    """Return True if only labels were added between two versions of the corpus, given by their digests."""
    changes = _changes_between(workspace, dataset, old_digest, new_digest)
    return changes is not None and all(entry["what"] == Kind.LABELS for entry in changes)


def added_since(workspace: Workspace, dataset: str, old_digest: str, new_digest: str) -> set[str] | None:
    """Return the uids of documents that came between two versions of the corpus, given by their digests.

    A document that the earlier version had does not count, even if it was removed and came back. Returns None if the
    changelog does not lead from one to the other.
    """
    changes = _changes_between(workspace, dataset, old_digest, new_digest)
    if changes is None:
        return None
    added, had = set[str](), set[str]()
    for entry in changes:
        had |= set(entry["documents"]["removed"]) - added
        added |= set(entry["documents"]["added"])
    return added - had


def _changes_between(workspace: Workspace, dataset: str, old: str, new: str) -> list[dict[str, Any]] | None:
    """Return the changes that led from one version of the corpus to another; None if none did.

    If a version occurs twice, because its files were restored, the first path to it counts.
    """
    paths: dict[str, list[dict[str, Any]]] = {old: []}
    for entry in entries(workspace, dataset):
        before, after = entry["corpus"]["before"], entry["corpus"]["after"]
        if before in paths and after not in paths:
            paths[after] = [*paths[before], entry]
    return paths.get(new)


def _entry_files(folder: Path) -> list[Path]:
    """Return the files of a changelog, the oldest change first. An entry may list millions of uids.

    Other files, such as ``._0001.json`` of a disk that macOS has written, do not count.
    """
    files = (path for path in folder.glob("*.json") if path.stem.isdecimal())
    return sorted(files, key=lambda path: int(path.stem))  # by name, 10000 comes before 9999


def _read_entry(path: Path) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if not entry.keys() >= _REQUIRED:
            raise ValueError("no record of a change")
    except (ValueError, AttributeError) as error:
        raise CorruptError(
            f"an unreadable {path} ({first_line(error)})",
            expected="the record of a change of the dataset",
            do="restore the file, or delete it: then xc drift may not know which documents are new",
        ) from error
    return entry


def write(workspace: Workspace, dataset: str, entry: dict[str, Any]) -> None:
    """Write an entry; from a scratch workspace the ingest moves it beside the corpus with the rest."""
    path = workspace.home(dataset) / CHANGES / f"{entry['number']:04}.json"
    write_file(path, canonical({"time": datetime.now(UTC).isoformat(timespec="seconds"), **entry}))


def redacted(entry: dict[str, Any], uids: Set[str]) -> dict[str, Any]:
    """Return an entry without these uids in its lists of uids; their number stays."""

    def without(content: Any) -> Any:
        if isinstance(content, dict):
            return {name: without(value) for name, value in content.items()}
        return [_FORGOTTEN if uid in uids else uid for uid in content] if isinstance(content, list) else content

    return {name: without(value) if name in _WITH_UIDS else value for name, value in entry.items()}


def redact(workspace: Workspace, dataset: str, uids: Set[str]) -> None:
    """Remove these uids from all entries of a changelog."""
    for path in _entry_files(workspace.home(dataset) / CHANGES):
        write_file(path, canonical(redacted(_read_entry(path), uids)))


def sentence(entry: dict[str, Any]) -> str:
    """Return one line about a change."""

    def counts(side: dict[str, Any]) -> str:
        return ", ".join(f"{len(side[name]):,} {word}" for name, word in _CHANGE_WORDS if side[name]) or "as before"

    sides = "; ".join(f"{side} {counts(entry[side])}" for side in ("documents", "labels"))
    return f"change {entry['number']} ({entry['what']}, {entry['time'][:10]}): {sides}"


def with_counts(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with the length of each list of uids in its place: a copy elsewhere outlives `xc forget`."""

    def counts(side: dict[str, Any]) -> dict[str, Any]:
        return {name: len(value) if isinstance(value, list) else value for name, value in side.items()}

    sides = {side: counts(entry[side]) for side in ("documents", "labels")}
    return {**entry, **sides, "moved": len(entry["moved"])}


_CHANGE_WORDS: Final = (("added", "new"), ("changed", "changed"), ("removed", "removed"))


def version(workspace: Workspace, dataset: str, number: int) -> Path:
    """Return the folder with the raw files as they were before change ``number``."""
    return workspace.state / VERSIONS / dataset / f"{number:04}"


def keep(workspace: Workspace, dataset: str, number: int) -> Path:
    """Keep the raw files of a dataset before change ``number`` replaces them, and return their folder.

    Files are linked, not copied, if the file system supports it: new versions are new files.
    """
    target = version(workspace, dataset, number)
    work = temporary(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        work.mkdir()
        with claimed(work):
            shutil.copytree(workspace.raw(dataset), work, copy_function=link_file, dirs_exist_ok=True)
            drop(target)
            work.rename(target)
    finally:
        drop(work)
    return target


def prune(workspace: Workspace, dataset: str, keep: int) -> None:
    """Delete all kept versions but the last ``keep``."""
    folders = kept_versions(workspace, dataset)
    for folder in folders[: max(len(folders) - keep, 0)]:
        drop(folder)


def kept_versions(workspace: Workspace, dataset: str) -> list[Path]:
    """Return the folders with the raw files before each of the last changes of a dataset, the oldest first."""
    folders = (workspace.state / VERSIONS / dataset).glob("[0-9]*")
    return sorted((folder for folder in folders if folder.name.isdecimal()), key=lambda folder: int(folder.name))
