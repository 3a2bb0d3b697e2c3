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
from xc_core.data.merge import Tables
from xc_core.data.new_documents import NewDocuments
from xc_core.data.splits import TEST
from xc_core.errors import DataError
from xc_core.lifecycle.arrival import Arrival, papers, present_corpus, report_unread, scratch
from xc_core.lifecycle.known_times import check_times
from xc_core.progress import report
from xc_core.visible import counted


def update(
    workspace: Workspace,
    path: Path,
    dataset: str,
    *,
    layout: str = "auto",
    allow: tuple[str, ...] = (),
    new_times: bool = False,
) -> Difference | None:
    """Merge the folder ``path`` into a dataset by uid; nothing changes on an error.

    ``allow`` adds kinds of imperfect data to those that the dataset accepts; ``new_times`` lets times collapse
    (``check_times``). Returns what came and went, None if a killed update with the same files was finished. Raises
    DataError for the first thing that is wrong, BusyError if another command is changing the dataset.
    """
    workspace.params.dataset(dataset)  # the error for an unknown dataset comes first
    with scratch(workspace, dataset) as staging:
        settings = workspace.params.dataset(dataset).corpus
        reading = allowing(replace(settings, layout=layout), *allow)
        _, source = open_source(path, layout, replace(reading.read_options(), part=True, test_fraction=0.0))
        report_unread(path, source.files)
        command = incoming.command("update", path, source.files, dataset, reading)
        if incoming.interrupted(workspace, dataset, command):
            incoming.forget(workspace, dataset)
            report(f"update: {dataset} was complete when the last update was stopped; nothing is read again")
            return None
        present_source = raw_source(workspace, dataset)
        _report_places(source, present_source, dataset)
        before = present_corpus(workspace, dataset, staging)
        if not source.names_labels and not _same_numbering(source, before, reading):
            raise _numbering_error(path)
        new_corpus = _read_new_files(path, staging.root / "part", reading)
        present = Tables.of(before, present_source)
        new = Tables.of(new_corpus, source, test_groups=settings.split == "group")
        new = _known_by_the_dataset(present, new, source, dataset)
        fraction = 0.0 if validation_given(workspace, before, dataset) else settings.validation_fraction
        shares = (fraction, settings.acceptance_fraction)
        merged = present.merged(new, NewDocuments(settings.split, *shares, staging.root / "near-duplicates"))
        _report_split_groups(merged.divided() - present.divided())
        if merged.same(present) and set(allow) <= set(settings.allow):
            report(f"update: {_nothing_new(new, dataset)}; nothing changes")
            return Difference.of(before, before)
        if settings.split == "time" and fraction and not new_times:
            check_times(present.documents.filter(pl.col("split") != TEST), merged.documents, dataset)
        config = replace(reading, layout="auto", validation_fraction=fraction)
        if before.labels_in_test_only:
            config = allowing(config, "unseen-labels")
        config = written(workspace, staging, dataset, merged, config)
        return Arrival(workspace, staging, dataset, config, command, Kind.UPDATE).install(None)


def _known_by_the_dataset(present: Tables, new: Tables, source: Source, dataset: str) -> Tables:
    """Return the tables of an update, with the uids of the labels and documents that the dataset has."""
    if not source.names_labels:
        new = new.numbered_as(present)
    if not source.has_uids:
        new = _known_by_text(present, new, dataset)
    _report_moved(present, new)
    _report_unlisted_labels(present, new)
    return new


def _nothing_new(new: Tables, dataset: str) -> str:
    """Return why an update changes nothing; files without a document may be a failed export."""
    if new.documents.is_empty():
        return f"there is no document in the new files, and no label that {dataset} lacks"
    return f"{dataset} has all that is in the new files"


def raw_source(workspace: Workspace, dataset: str) -> Source:
    """Open the files of a dataset; raise MissingError if they are gone."""
    settings = workspace.params.dataset(dataset).corpus
    return open_source(workspace.present_raw(dataset), settings.layout, settings.read_options())[1]


def _same_numbering(source: Source, corpus: Corpus, config: IngestConfig) -> bool:
    """Return True if each line that both have is a label with the same text."""
    blocks = (clean_block(block, Allowed.parse(config.allow)) for block in source.labels())
    rows = [row for block in blocks for row in zip(block.titles, block.contents, strict=True)]
    texts = [pl.col(name).fill_null("") for name in ("title", "content")]
    return all(map(operator.eq, rows, corpus.table("labels").select(texts).iter_rows()))


def _numbering_error(path: Path) -> DataError:
    return DataError(
        "labels that are known by their line number, and other labels at these lines than in the dataset",
        expected="its labels in the same order with the same texts, new ones at the end; or uids of labels",
        do="write tables whose column labels has uids; or xc-json. To replace the dataset: xc ingest --replace",
        where=str(path),
    )


def _known_by_text(present: Tables, new: Tables, dataset: str) -> Tables:
    """Return the tables of an update without uids, in which a document with a known text has the uid of that text."""
    matched, num_known = new.known_by_text(present)
    report(
        f"update: rows without uids are known by their text: {num_known:,} have the text of a document of {dataset}, "
        "whose labels they replace; the others are new. A corrected text counts as new"
    )
    return matched


def allowing(config: IngestConfig, *kinds: str) -> IngestConfig:
    """Return the settings with more kinds of imperfect data allowed."""
    return replace(config, allow=tuple(dict.fromkeys((*config.allow, *kinds))))


def _read_new_files(path: Path, folder: Path, config: IngestConfig) -> Corpus:
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


def _report_moved(present: Tables, new: Tables) -> None:
    joined = present.documents.select("uid", "split").join(new.documents.select("uid", "split"), on="uid")
    if moved := joined.filter((joined["split"] == TEST) != (joined["split_right"] == TEST))["uid"].to_list():
        report(
            f"update: kept the split of {counted(len(moved), 'document')} that the new files move between train and "
            f"test (the first: {moved[0]})"
        )


def _report_unlisted_labels(present: Tables, new: Tables) -> None:
    """Report new labels that only documents name: one that is mistyped or was forgotten comes in this way."""
    named = new.labels.filter((pl.col("title") == pl.col("uid")) & (pl.col("content") == ""))
    if uids := named.join(present.labels, on="uid", how="anti")["uid"].to_list():
        report(f"update: {counted(len(uids), 'new label')} with no text but the uid (the first: {', '.join(uids[:3])})")


def _report_places(source: Source, present_source: Source, dataset: str) -> None:
    if source.has_uids and not present_source.has_uids:
        report(
            f"update: the files of {dataset} have no uids, so its documents are known by their place: a row of the new "
            "files replaces none of them"
        )


def _report_split_groups(groups: set[str]) -> None:
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


def written(
    workspace: Workspace, staging: Workspace, dataset: str, tables: Tables, config: IngestConfig
) -> IngestConfig:
    """Write the raw files of a new version into the scratch workspace, make its corpus, and return its settings."""
    _report_unread(raw_source(workspace, dataset), config)
    longest = tables.write(staging.raw(dataset), config.split)
    for paper in papers(workspace.raw(dataset)):
        shutil.copyfile(paper, staging.raw(dataset) / paper.name)
    config = replace(config, max_line_bytes=max(config.max_line_bytes, longest + 2))
    staging.params.declare_dataset(dataset, config)
    run_stage(staging, "corpus", dataset)
    return config
