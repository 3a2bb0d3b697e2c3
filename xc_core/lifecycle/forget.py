"""Forget documents and labels: gone from a dataset and from everything in the project that was made of it."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

from xc_core.chain import changelog, incoming
from xc_core.chain.changelog import Kind
from xc_core.chain.names import ACCEPTANCE, CHANGES, INBOX, SETTINGS
from xc_core.chain.workspace import PER_DATASET, Workspace, at_rest
from xc_core.data.acceptance import AcceptanceSet
from xc_core.data.ingest import IngestConfig
from xc_core.data.merge import Tables
from xc_core.data.splits import TEST
from xc_core.errors import BusyError, CorruptError, MissingError, RefusedError, nearest
from xc_core.leftovers import drop, drop_all
from xc_core.lifecycle import dvc_lock
from xc_core.lifecycle.arrival import Arrival, present_corpus, scratch, scratch_to_show
from xc_core.lifecycle.places import Place, places
from xc_core.lifecycle.update import allowing, raw_source, validation_given, written
from xc_core.progress import report
from xc_core.visible import counted

_MARKERS = (".gitkeep", ".gitignore", ".DS_Store")
"""Files of an inbox that are no data."""


@dataclass(frozen=True)
class Forgotten:
    """What ``forget`` did."""

    documents: list[str]
    labels: list[str]
    deleted: list[Path]
    """Artefacts, kept files and caches, relative to the project."""
    accepted: int
    """Documents that left the acceptance set."""
    copies: list[str]
    """Documents with the text of a forgotten one, which stay."""
    recipes: list[str]
    """Recipes that have to be trained again."""
    unrecorded: int
    """Stages that left dvc.lock."""
    elsewhere: list[Place]
    """Places that may still hold it."""


@dataclass(frozen=True)
class Preview:
    """What ``forget`` would do."""

    documents: list[str]
    labels: list[str]
    unlabelled: list[str]
    """The documents among them that nobody named: they would have no label."""
    paths: list[Path]
    """Artefacts, kept files and caches that would be deleted."""
    accepted: int
    """Documents that would leave the acceptance set."""
    copies: list[str]
    """Documents with the text of a forgotten one, which would stay."""
    recipes: list[str]
    """Recipes that would have to be trained again."""
    elsewhere: list[Place]
    """Places that may hold it and that nothing is deleted from."""


@dataclass(frozen=True)
class _Selection:
    """What is to be forgotten of a dataset, what remains, and the settings with which that is read."""

    documents: list[str]
    labels: list[str]
    unlabelled: list[str]
    tables: Tables
    config: IngestConfig

    @property
    def copies(self) -> list[str]:
        return self.tables.copies(self.documents)


def preview(
    workspace: Workspace, dataset: str, documents: list[str], labels: list[str], *, with_documents: bool = False
) -> Preview:
    """Return what ``forget`` would remove and delete; raise what it would raise before that. Nothing is deleted.

    A stage of the dataset may run meanwhile, and the project may be one that can only be read.
    """
    workspace.params.dataset(dataset)
    documents, labels, command = _command_of(documents, labels, with_documents=with_documents)
    recipes = workspace.params.recipes(dataset)
    with scratch_to_show(workspace, dataset) as staging:
        if incoming.interrupted(workspace, dataset, command):
            report("forget: all was removed when the last xc forget was stopped; the same command again completes it")
            return Preview(documents, labels, [], [], 0, [], recipes, places(workspace, dataset))
        _check_inbox(workspace.home(dataset) / INBOX, dataset)
        chosen = _selection(workspace, staging, dataset, documents, labels, with_documents=with_documents)
        accepted = 0
        with suppress(CorruptError, MissingError):  # a damaged set is deleted
            present = AcceptanceSet.open(workspace.home(dataset) / ACCEPTANCE)
            accepted = present.leaving(chosen.documents, labels, chosen.tables.texts(chosen.documents))
        paths = _derived_paths(workspace, dataset)
    elsewhere = places(workspace, dataset)
    return Preview(chosen.documents, labels, chosen.unlabelled, paths, accepted, chosen.copies, recipes, elsewhere)


def forget(
    workspace: Workspace, dataset: str, documents: list[str], labels: list[str], *, with_documents: bool = False
) -> Forgotten:
    """Remove documents and labels by uid. If it is killed, the same command does the rest.

    ``with_documents`` also removes documents that would have no label. Raises MissingError for an unknown uid,
    RefusedError if documents would be without a label, BusyError if the inbox has files that were not ingested, or a
    stage, study or gate of the dataset, another command that changes it, or dvc is running, StorageError if files
    cannot be deleted.
    """
    workspace.params.dataset(dataset)  # the error for an unknown dataset comes first
    documents, labels, command = _command_of(documents, labels, with_documents=with_documents)
    with scratch(workspace, dataset) as staging:
        if incoming.interrupted(workspace, dataset, command):
            return _finished_result(workspace, dataset, documents, labels)
        _check_inbox(workspace.home(dataset) / INBOX, dataset)
        with at_rest(workspace, dataset):
            pass  # reported before the dataset is read and written again
        chosen = _selection(workspace, staging, dataset, documents, labels, with_documents=with_documents)
        documents, uids = chosen.documents, frozenset((*chosen.documents, *labels))
        with at_rest(workspace, dataset):  # a stage that ends after the deletion would keep what it made of them
            unrecorded = dvc_lock.forget(workspace, dataset)  # first, because it can fail
            folder = workspace.home(dataset) / ACCEPTANCE
            accepted = _forget_accepted(folder, documents, labels, chosen.tables.texts(documents))
            deleted = _derived_paths(workspace, dataset)
            linked = _link_targets(workspace, [workspace.raw(dataset), workspace.folder("corpus", dataset), *deleted])
            drop_all(deleted)
            incoming.forget(workspace, dataset)
            changelog.redact(workspace, dataset, uids)
            Arrival(workspace, staging, dataset, chosen.config, command, Kind.FORGET, uids).install(1.0)
            incoming.drop_replaced(workspace, dataset)
        elsewhere = [*linked, *places(workspace, dataset)]  # a service may need seconds
        incoming.forget(workspace, dataset)
    recipes, shown = workspace.params.recipes(dataset), [path.relative_to(workspace.root) for path in deleted]
    return Forgotten(documents, labels, shown, accepted, chosen.copies, recipes, unrecorded, elsewhere)


def _command_of(documents: list[str], labels: list[str], *, with_documents: bool) -> tuple[list[str], list[str], str]:
    """Return the uids, each once, and what identifies a command that forgets them."""
    documents, labels = (list(dict.fromkeys(uids)) for uids in (documents, labels))
    command = hashlib.sha256(json.dumps([documents, labels, with_documents]).encode()).hexdigest()
    return documents, labels, command


def _selection(
    workspace: Workspace,
    staging: Workspace,
    dataset: str,
    documents: list[str],
    labels: list[str],
    *,
    with_documents: bool,
) -> _Selection:
    """Check the uids, and write the dataset without them into ``staging``."""
    settings = workspace.params.dataset(dataset).corpus
    corpus = present_corpus(workspace, dataset, staging)
    tables = Tables.of(corpus, raw_source(workspace, dataset))
    _check_known(workspace, dataset, "document", documents, tables.documents["uid"].to_list())
    _check_known(workspace, dataset, "label", labels, tables.labels["uid"].to_list())
    unlabelled = set(tables.unlabelled())
    remaining = tables.without(documents, labels)
    lost = [uid for uid in remaining.unlabelled() if uid not in unlabelled]
    if lost and not with_documents and "empty-labels" not in settings.allow:
        raise _unlabelled_error(lost)
    if not with_documents:
        lost = []
    documents = documents + lost
    remaining = tables.without(documents, labels) if lost else remaining
    given = validation_given(workspace, corpus, dataset)
    config = written(workspace, staging, dataset, remaining, _config(settings, remaining, validation_given=given))
    return _Selection(documents, labels, lost, tables, config)


def _finished_result(workspace: Workspace, dataset: str, documents: list[str], labels: list[str]) -> Forgotten:
    """Return the result of a command that was stopped after the rows were removed; the next command has finished it."""
    report("forget: all was removed when the last xc forget was stopped; what it deleted is not listed again")
    incoming.drop_replaced(workspace, dataset)
    elsewhere = places(workspace, dataset)
    incoming.forget(workspace, dataset)
    recipes = workspace.params.recipes(dataset)
    return Forgotten(documents, labels, [], 0, [], recipes, 0, elsewhere)


def _config(settings: IngestConfig, remaining: Tables, *, validation_given: bool) -> IngestConfig:
    """Return the settings of a dataset with which the remaining rows are read."""
    config = replace(settings, layout="auto")  # what is written is xc-json
    if validation_given:
        config = replace(config, validation_fraction=0.0)  # a later update holds nothing out beside it
    if config.split == "group" and not (remaining.documents["group"] != "").any():
        config = replace(config, split="uid")  # the same: a document without a group is a group of one
    return allowing(config, "unseen-labels") if _has_unseen_labels(remaining) else config


def _check_inbox(folder: Path, dataset: str) -> None:
    """Raise BusyError if files wait in the inbox: they are the user's only copy, or would bring the rows back.

    So are those that a run of Dagster has set aside beside it to archive them, if it was killed then.
    """
    real = folder.resolve()
    inboxes = (folder, *real.parent.glob(f".{escape(real.name)}.*"))
    waiting = [path for inbox in inboxes for path in inbox.rglob("*")]
    files = sorted(path for path in waiting if not path.is_dir() and path.name not in _MARKERS)
    if files:
        raise BusyError(
            f"files in the inbox of {dataset} that were not ingested yet: {len(files):,}, the first {files[0]}",
            expected="an empty inbox, because an ingest of these files could bring the rows back; nothing was removed",
            do="wait until they are ingested, or move them out of the inbox and delete the rows in them",
        )


def _check_known(workspace: Workspace, dataset: str, kind: str, uids: list[str], present: list[str]) -> None:
    """Raise MissingError for a uid that the dataset neither has nor had."""
    unknown = set(uids) - set(present)
    if unknown:
        unknown -= _former_uids(workspace, dataset, kind)
    for uid in uids:
        if uid in unknown:
            raise MissingError(
                f"no {kind} {uid!r} in {dataset}{nearest(uid, present[:10_000])}",
                expected=f"the uid of a {kind} that the dataset has or had",
                do="fix the uid; if it was forgotten already, there is nothing to do",
            )


def _former_uids(workspace: Workspace, dataset: str, kind: str) -> set[str]:
    """Return the uids in the changelog and the acceptance set; kept files and models may have what new files lack."""
    entries = (entry[f"{kind}s"].values() for entry in changelog.entries(workspace, dataset))
    former = {uid for lists in entries for uids in lists if isinstance(uids, list) for uid in uids}
    with suppress(CorruptError, MissingError):  # a damaged set is deleted
        former.update(getattr(AcceptanceSet.open(workspace.home(dataset) / ACCEPTANCE), f"{kind}s")["uid"])
    return former


def _unlabelled_error(lost: list[str]) -> RefusedError:
    return RefusedError(
        f"{counted(len(lost), 'document')} that would have no label (the first: {', '.join(lost[:3])})",
        expected="at least one label per document; nothing was removed",
        do="pass --with-documents to forget these too, or give them other labels first: xc update",
    )


def _has_unseen_labels(tables: Tables) -> bool:
    """Return True if a label has no train or validation document."""
    seen = tables.documents.filter(tables.documents["split"] != TEST)
    pairs = tables.pairs.join(seen, left_on="doc", right_on="uid", how="semi")
    return len(tables.labels.join(pairs, left_on="uid", right_on="label", how="anti")) > 0


def _forget_accepted(folder: Path, documents: list[str], labels: list[str], texts: set[str]) -> int:
    """Remove documents and labels from the acceptance set, which otherwise stays; a damaged one is deleted.

    Returns the number of documents that left the set.
    """
    try:
        accepted = AcceptanceSet.open(folder)
        return len(accepted) - len(accepted.without(documents, labels, texts))
    except CorruptError:
        drop(folder)
    except MissingError:
        pass
    return 0


def _link_targets(workspace: Workspace, paths: list[Path]) -> list[Place]:
    """Return the folders that ``paths`` link to: a link is deleted or replaced, but its target stays.

    They are reported at once, because after a kill the next command finds no link.
    """
    do = "delete it, if nothing else needs it"
    links = [path for path in paths if path.is_symlink() and path.exists()]
    targets = [Place(f"{path.resolve()}, to which {path.relative_to(workspace.root)} was a link", do) for path in links]
    for target in targets:
        report(f"forget: {target.name}: {target.do}")
    return targets


def _derived_paths(workspace: Workspace, dataset: str) -> list[Path]:
    """Return all that was made of a dataset: not its raw files, corpus, changelog, settings, inbox and acceptance set.

    DVC's own files stay: they hold hashes, and without its .gitignore git would take the raw files in.
    """
    home, state = workspace.home(dataset), workspace.state
    excluded = ("raw", "corpus", CHANGES, SETTINGS, ACCEPTANCE, INBOX)
    paths = [path for path in home.iterdir() if path.name not in (*excluded, ".gitignore") and path.suffix != ".dvc"]
    recipes = workspace.params.recipes(dataset)
    recipe_paths = [path for recipe in recipes for path in (home / recipe).glob("*") if path.name != SETTINGS]
    paths = [path for path in paths if path.name not in recipes] + recipe_paths
    paths += [state / kind / dataset for kind in (*PER_DATASET, "tune")]
    paths += [path for name in (f"*@{dataset}", f"*@{dataset}_*") for path in (state / "run").glob(name)]
    return [path for path in paths if path.exists()]
