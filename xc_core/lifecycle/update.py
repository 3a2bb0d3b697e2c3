"""Merge new documents, labels and corrected pairs into a dataset, or forget some: a new corpus version, or nothing."""

from __future__ import annotations

import operator
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl

from xc_core import artifacts
from xc_core.chain import changelog, incoming
from xc_core.chain.changelog import Kind
from xc_core.chain.names import CHANGES
from xc_core.chain.runner import run_stage
from xc_core.chain.workspace import Workspace
from xc_core.data.checks import Allowed, clean_block
from xc_core.data.corpus import Corpus
from xc_core.data.difference import Difference
from xc_core.data.formats import Source, open_source
from xc_core.data.ingest import IngestConfig, ingest
from xc_core.data.merge import NewDocuments, Tables
from xc_core.data.splits import TEST
from xc_core.errors import DataError
from xc_core.lifecycle.arrival import Arrival, papers, present_corpus, report_unread, scratch
from xc_core.progress import report
from xc_core.visible import counted


def update(
    workspace: Workspace, path: Path, dataset: str, *, layout: str = "auto", allow: tuple[str, ...] = ()
) -> Difference | None:
    """Merge the folder ``path`` into a dataset by uid; nothing changes on an error.

    ``allow`` adds kinds of imperfect data to those that the dataset accepts. Returns what came and went, None if a
    killed update with the same files was finished. Raises DataError for the first thing that is wrong, BusyError if
    another command is changing the dataset.
    """
    workspace.params.dataset(dataset)  # the error for an unknown dataset comes first
    with scratch(workspace, dataset) as inner:
        own = workspace.params.dataset(dataset).corpus
        reading = allowing(replace(own, layout=layout), *allow)
        _, source = open_source(path, layout, replace(reading.read_options(), part=True))
        report_unread(path, source.files)
        command = incoming.command("update", path, source.files, dataset, reading)
        if incoming.interrupted(workspace, dataset, command):
            incoming.forget(workspace, dataset)
            report(f"update: {dataset} was complete when the last update was stopped; nothing is read again")
            return None
        by_uid, present = source.has_uids, raw_source(workspace, dataset)
        if by_uid and not present.has_uids:
            report(
                f"update: the files of {dataset} have no uids, so its documents are known by their place: a row of the "
                "new files replaces none of them"
            )
        before = present_corpus(workspace, dataset, inner)
        if not source.names_labels and not _numbered_alike(source, before, reading):
            raise _no_names(path)
        part = _read(path, inner.root / "part", reading)
        there, came = Tables.of(before, present), Tables.of(part, source if own.split == "group" else None)
        if not by_uid:
            came = _known_by_text(there, came, dataset)
        _report_elsewhere(there, came)
        _report_named(there, came)
        fraction = 0.0 if validation_given(workspace, before, dataset) else own.validation_fraction
        cut = NewDocuments(own.split, fraction, inner.root / "near-duplicates")
        merged = there.merged(came, cut)
        _report_divided(merged.divided() - there.divided())
        if merged.same(there) and set(allow) <= set(own.allow):
            report(f"update: {dataset} has all that is in the new files; nothing changes")
            return Difference.of(before, before)
        config = replace(reading, layout="auto", validation_fraction=fraction)
        if before.labels_in_test_only or part.labels_in_test_only:
            config = allowing(config, "unseen-labels")
        config = written(workspace, inner, dataset, merged, config)
        return Arrival(workspace, inner, dataset, config, command, Kind.UPDATE).install(None)


def raw_source(workspace: Workspace, dataset: str) -> Source:
    """Open the files of a dataset."""
    own = workspace.params.dataset(dataset).corpus
    return open_source(workspace.raw(dataset), own.layout, own.read_options())[1]


def _numbered_alike(source: Source, corpus: Corpus, config: IngestConfig) -> bool:
    """Return True if each line number that both have means the same label, with the same text."""
    blocks = (clean_block(block, Allowed.parse(config.allow)) for block in source.labels())
    new = [row for block in blocks for row in zip(block.uids, block.titles, block.contents, strict=True)]
    texts = [pl.col(name).fill_null("") for name in ("title", "content")]
    return all(map(operator.eq, new, corpus.table("labels").select("uid", *texts).iter_rows()))


def _no_names(path: Path) -> DataError:
    return DataError(
        "labels that are known by their line number, and other labels at these lines than in the dataset",
        expected="its labels in the same order with the same texts, new ones at the end; or uids of labels",
        do="write tables whose column labels has uids; or xc-json. To replace the dataset: xc ingest --replace",
        where=str(path),
    )


def _known_by_text(there: Tables, came: Tables, dataset: str) -> Tables:
    """Return the tables of an update without uids, in which a document with a known text has the uid of that text."""
    found, known = came.known_by_text(there)
    report(
        f"update: rows without uids are known by their text: {known:,} have the text of a document of {dataset}, whose "
        "labels they replace; the others are new. A corrected text counts as new"
    )
    return found


def allowing(config: IngestConfig, *kinds: str) -> IngestConfig:
    """Return the settings with more kinds of imperfect data allowed."""
    return replace(config, allow=tuple(dict.fromkeys((*config.allow, *kinds))))


def _read(path: Path, folder: Path, config: IngestConfig) -> Corpus:
    """Read the files of an update, each row as strictly as in an ingest."""
    with artifacts.building(folder, kind=Corpus.kind) as build:
        ingest(path, build, replace(config, split="group", validation_fraction=0.0), part=True)  # keeps groups
    return Corpus.open(folder)


def validation_given(workspace: Workspace, corpus: Corpus, dataset: str) -> bool:
    """Return True if the validation documents came in a file of their own, not from a cut of ours.

    If all entries are lost, the cut counts as ours. With a file the setting ``validation_fraction`` is 0, so that
    nothing is cut.
    """
    kinds = [entry["what"] for entry in changelog.entries(workspace, dataset)]
    files = [kind for kind in kinds if kind not in (Kind.SETTINGS, Kind.LABELS)]
    lost = changelog.is_lost(workspace.home(dataset) / CHANGES)
    ours = files[-1] in (Kind.UPDATE, Kind.FORGET) if files else lost
    return bool(artifacts.read_made(corpus.folder).facts["split"]["given"]) and not ours


def _report_elsewhere(there: Tables, came: Tables) -> None:
    both = there.documents.select("uid", "split").join(came.documents.select("uid", "split"), on="uid")
    if moved := both.filter((both["split"] == TEST) != (both["split_right"] == TEST))["uid"].to_list():
        report(
            f"update: kept the split of {counted(len(moved), 'document')} that the new files move between train and "
            f"test (the first: {moved[0]})"
        )


def _report_named(there: Tables, came: Tables) -> None:
    """Report new labels that only documents name: one that is mistyped or was forgotten comes in this way."""
    named = came.labels.filter((pl.col("title") == pl.col("uid")) & (pl.col("content") == ""))
    if new := named.join(there.labels, on="uid", how="anti")["uid"].to_list():
        report(f"update: {counted(len(new), 'new label')} with no text but the uid (the first: {', '.join(new[:3])})")


def _report_divided(groups: set[str]) -> None:
    if groups:
        report(
            f"update: the new files divide {counted(len(groups), 'group')} between test and other splits (the first: "
            f"{min(groups)}), so figures on test may be too good; put new rows of a group into the file that has it"
        )


def _report_unread(source: Source, config: IngestConfig) -> None:
    """Report filter files whose pairs a new version does not have."""
    files = [path.name for split in source.splits if (path := source.filters(split))]
    if files and config.filters == "none":
        report(f"{', '.join(files)}: not in the new version, because the setting filters is none")


def written(workspace: Workspace, inner: Workspace, dataset: str, tables: Tables, config: IngestConfig) -> IngestConfig:
    """Write the raw files of a new version into the scratch workspace, make its corpus, and return its settings."""
    _report_unread(raw_source(workspace, dataset), config)
    longest = tables.write(inner.raw(dataset), config.split)
    for paper in papers(workspace.raw(dataset)):
        shutil.copyfile(paper, inner.raw(dataset) / paper.name)
    config = replace(config, max_line_bytes=max(config.max_line_bytes, longest + 2))
    inner.params.declare_dataset(dataset, config)
    run_stage(inner, "corpus", dataset)
    return config
