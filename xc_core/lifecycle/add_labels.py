"""Add labels to a dataset and to its models: a new corpus version, and predicted rows, without training anything."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from xc_core import artifacts, manifests
from xc_core.artifacts import Made
from xc_core.chain import incoming
from xc_core.chain.changelog import Kind
from xc_core.chain.extension import check_extendable
from xc_core.chain.fingerprints import fingerprint
from xc_core.chain.registry import STAGES, versioned_stages
from xc_core.chain.runner import run_stage
from xc_core.chain.status import Status, depends, states
from xc_core.chain.workspace import Workspace
from xc_core.data.alike import sentence as alike_sentence
from xc_core.data.checks import Allowed
from xc_core.data.corpus import CONTENT, Corpus
from xc_core.data.formats import LAYOUTS, open_source
from xc_core.data.label_file import read_labels
from xc_core.data.label_table import FILE as LABELS
from xc_core.data.more_labels import with_more_labels
from xc_core.errors import CorruptError, DataError, MissingError, MovedError, XCError, preview
from xc_core.lifecycle.arrival import Arrival, present_corpus, scratch
from xc_core.lifecycle.update import allowing
from xc_core.linked import link_file
from xc_core.params import plain
from xc_core.progress import report
from xc_core.visible import counted

_EXTENDED = [stage.name for stage in versioned_stages("experiment") if stage.name not in ("encoder", "model")]
_OPTIONAL = "audit"
"""A stage that other stages do not read, so a model may be without it."""
_LABEL_TEXTS = [pl.col(name).fill_null("") for name in ("title", "content")]
"""The texts of a label; an absent one is an empty one."""


@dataclass(frozen=True)
class Added:
    """What was done."""

    labels: int
    """Labels that are new in the corpus."""
    recipes: list[str]
    """Recipes whose models know them now."""


def add_labels(workspace: Workspace, path: Path, dataset: str, recipe: str | None = None) -> Added:
    """Add the labels of a file to a dataset, and to the models of one recipe or, by default, of all that have one.

    Nothing changes on an error. A label that the dataset has with the same text stays as it is, so a command that was
    killed can be repeated. Raises DataError for the first wrong row, MovedError for a model that is out of date,
    BusyError if another command is changing the dataset.
    """
    settings = workspace.params.dataset(dataset).corpus
    file_labels = read_labels(path, settings.read_options(), Allowed.parse(settings.allow))
    recipes = _extendable(workspace, dataset, recipe)
    with artifacts.hashed_once():
        added = _add_to_corpus(workspace, dataset, file_labels, path)
        _extend_tokens(workspace, dataset)
        extended = [name for name in recipes if _extend_if_declared(workspace, dataset, name)]
    return Added(added, extended)


def _extend_if_declared(workspace: Workspace, dataset: str, recipe: str) -> bool:
    """Extend an experiment; return False if another command has deleted it since its model was checked."""
    try:
        extend(workspace, dataset, recipe)
    except MissingError:
        if recipe in workspace.params.recipes(dataset):
            raise
        report(f"add-labels: {recipe} is left out: it was deleted meanwhile")
        return False
    return True


def _extend_tokens(workspace: Workspace, dataset: str) -> None:
    """Tokenise the new labels, or all texts if there are no tokens that can be extended."""
    try:
        run_stage(workspace, "tokens", dataset, extend=True)
    except (CorruptError, MissingError, MovedError):
        run_stage(workspace, "tokens", dataset)


def extend(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Extend the artefacts of an experiment by the labels that are new in the corpus, and pack the model again.

    Raises MovedError if anything but labels changed since they were made.
    """
    for stage in _EXTENDED:
        if stage != _OPTIONAL or workspace.folder(stage, dataset, recipe).is_dir():
            run_stage(workspace, stage, dataset, recipe, extend=True)
    run_stage(workspace, "model", dataset, recipe, refresh=True)


def _new_labels(file_labels: pl.DataFrame, corpus: Corpus, dataset: str) -> pl.DataFrame:
    """Return the labels that the corpus lacks; raise DataError for one that it has with another text."""
    corpus_labels = corpus.table("labels").with_columns(_LABEL_TEXTS)
    present = file_labels.join(corpus_labels, on="uid", how="inner", maintain_order="left")
    changed = present.filter(
        (pl.col("title") != pl.col("title_right")) | (pl.col("content") != pl.col("content_right"))
    )
    if len(changed):
        raise DataError(
            f"{counted(len(changed), 'label')} that {dataset} has with another text; "
            f"the first is {preview(changed['uid'][0])}",
            expected="new uids; nothing has changed",
            do=f"leave them out; to change texts: xc update FOLDER --dataset {dataset}, then train",
        )
    return file_labels.join(present, on="uid", how="anti", maintain_order="left")


def _add_to_corpus(workspace: Workspace, dataset: str, file_labels: pl.DataFrame, path: Path) -> int:
    """Make a corpus version with the labels that are new at the end; return how many. The layout stays."""
    with scratch(workspace, dataset) as staging:
        settings = workspace.params.dataset(dataset).corpus
        corpus = present_corpus(workspace, dataset, staging)
        new_labels = _new_labels(file_labels, corpus, dataset)
        if not len(new_labels):
            return 0
        config = allowing(settings, "unseen-labels")
        raw = workspace.raw(dataset)
        layout, _ = open_source(raw, config.layout, config.read_options())
        if layout.add_labels is None:
            raise DataError(
                f"a dataset in the layout {layout.name}, in which labels have no uids",
                expected=f"a dataset in the layout {' or '.join(name for name in LAYOUTS if LAYOUTS[name].add_labels)}",
                do="ingest it in one of them, with uids",
                where=str(raw),
            )
        staging.home(dataset).mkdir(parents=True)
        shutil.copytree(raw, staging.raw(dataset), copy_function=link_file)
        labels = pl.concat([corpus.table("labels").with_columns(_LABEL_TEXTS), new_labels])
        layout.add_labels(staging.raw(dataset), labels, len(new_labels))
        config = replace(config, max_line_bytes=max(config.max_line_bytes, _line_limit(new_labels)))
        staging.params.declare_dataset(dataset, config)
        _check_only_labels_added(corpus, _extended_corpus(staging, dataset, corpus), labels)
        command = incoming.command("add-labels", path, [path], dataset, settings)
        Arrival(workspace, staging, dataset, config, command, Kind.LABELS).install(None)
        return len(new_labels)


def _extended_corpus(staging: Workspace, dataset: str, before: Corpus) -> Corpus:
    """Make the corpus of the raw files of ``staging``, which differ from those of ``before`` by labels at the end."""
    partition, raw, folder = staging.params.dataset(dataset), staging.raw(dataset), staging.folder("corpus", dataset)
    config = partition.corpus
    opened = open_source(raw, config.layout, config.read_options())
    if not opened[1].documents_stay:
        return Corpus.open(run_stage(staging, "corpus", dataset).folder)
    digests = depends(staging, STAGES["corpus"], partition)
    with artifacts.building(folder, kind=Corpus.kind) as build:
        with_more_labels(raw, opened, build, config, before)
        build.origin = Made(fingerprint(digests), digests, plain(config))
        if alike := build.facts["alike_labels"]:
            report(f"corpus: {alike_sentence(alike)}")
    return Corpus.open(folder)


def _line_limit(new_labels: pl.DataFrame) -> int:
    """Return a limit of bytes that every line of the new labels stays below."""
    return max(len(json.dumps(row, ensure_ascii=False).encode()) for row in new_labels.iter_rows(named=True)) + 2


def _check_only_labels_added(before: Corpus, after: Corpus, labels: pl.DataFrame) -> None:
    """Raise DataError unless the new corpus has these labels, and all else as it was, in the same order."""
    same = after.table("labels").with_columns(_LABEL_TEXTS).equals(labels)
    if _file_hashes(before) != _file_hashes(after):  # other bytes may hold the same rows
        same &= before.table("documents").equals(after.table("documents"))
        for pairs in ("labels", "filters"):
            old, new = getattr(before, pairs), getattr(after, pairs)
            same &= old.indptr.tolist() == new.indptr.tolist() and old.indices.tolist() == new.indices.tolist()
    if not same:
        raise DataError(
            "documents, pairs or older labels that differ once the labels are added",
            expected="the dataset as it was, with labels at the end; nothing has changed",
            do="xc update FOLDER, then a refresh (docs/runbook.md)",
        )


def _file_hashes(corpus: Corpus) -> dict[str, str]:
    """Return the SHA-256 of each file of a corpus that new labels do not change."""
    files = manifests.read_manifest(corpus.folder).files
    return {name: file["sha256"] for name, file in files.items() if name not in (CONTENT, LABELS)}


def _extendable(workspace: Workspace, dataset: str, recipe: str | None) -> list[str]:
    """Return the recipes whose models can take new labels; raise the error of the one that is named."""
    if recipe is not None:
        check_model(workspace, dataset, recipe)
        return [recipe]
    recipes = []
    for name in workspace.params.recipes(dataset):
        try:
            check_model(workspace, dataset, name)
        except XCError as error:
            report(f"add-labels: {name} is left out: {error.found}")
        else:
            recipes.append(name)
    return recipes


def check_model(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Raise MissingError, MovedError for a model that cannot be extended by labels."""
    experiment = workspace.params.experiment(dataset, recipe)
    by_stage = states(workspace, experiment)
    if by_stage["corpus"].status is Status.STALE:
        raise MovedError(
            f"a corpus that is out of date: {by_stage['corpus'].why}",
            expected="a dataset whose files have not changed since they were ingested",
            do=workspace.params.train_command(dataset, recipe),
        )
    for stage in ("encoder", *_EXTENDED, "model"):
        state = by_stage[stage]
        if state.status is Status.MISSING and stage != _OPTIONAL:
            raise MissingError(
                f"no {stage} of {dataset}/{recipe}",
                expected="a model whose stages have run",
                do=workspace.params.train_command(dataset, recipe),
            )
        if state.status is Status.STALE:
            check_extendable(workspace, STAGES[stage], experiment, depends(workspace, STAGES[stage], experiment))
    for score in experiment.recipe.scores.values():
        score.check_extended()
    classifier = experiment.recipe.classifier
    if classifier.epochs and classifier.negatives.draws_from_noise and not classifier.loss.unbiased:
        raise MovedError(
            f"a classifier of {recipe} whose negatives were drawn from a distribution over its labels",
            expected="one that can rank labels that it was not trained on",
            do="add the labels with xc update, then train",
        )
