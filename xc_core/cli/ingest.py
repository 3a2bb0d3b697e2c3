"""``xc ingest``: a folder of text becomes a dataset, or an error says why not and nothing is written."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import click
from click.core import ParameterSource

from xc_core import artifacts
from xc_core.causes import resolved
from xc_core.chain import Ran, Workspace, incoming, recut_corpus, run_stage
from xc_core.chain.changelog import Kind
from xc_core.chain.names import checked_name
from xc_core.cli.options import Names, Number, new_times_option
from xc_core.cli.tables import show_next
from xc_core.data.checks import MOST_SHARED, Allowed
from xc_core.data.corpus import Corpus
from xc_core.data.cut import BY
from xc_core.data.difference import Difference
from xc_core.data.formats import LAYOUTS, open_source
from xc_core.data.ingest import FILTERS, IngestConfig
from xc_core.data.propensity import PROPENSITY
from xc_core.data.recut import is_enough
from xc_core.data.splits import TEST
from xc_core.errors import UsageError, bare
from xc_core.lifecycle.arrival import Arrival, changed_by_hand, papers, report_unread, scratch
from xc_core.lifecycle.known_times import check_new_times
from xc_core.params import plain
from xc_core.progress import report
from xc_core.visible import counted

_DEFAULT = IngestConfig()
_AUTO: Final = "auto"
_LATER: Final = 0.9
"""Share of the test documents from which on they count as later than the train documents."""


@click.command(short_help="Check a folder of text and make it a dataset.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--dataset", required=True, help="Name of the dataset: lower-case letters, digits and '-'.")
@click.option("--layout", type=Names("layout", LAYOUTS.names, "auto"), default="auto", show_default=True,
              help="Layout of the folder; auto: by the names of its files.")  # fmt: skip
@click.option("--filters", type=click.Choice(FILTERS), default=_DEFAULT.filters, show_default=True,
              help="Pairs left out of predictions: from filter files, made from the uids, or none.")  # fmt: skip
@click.option("--propensity", type=Names("propensity model", PROPENSITY.names),
              default=_DEFAULT.propensity, show_default=True,
              help="Constants of the propensity model, by which rare labels count more in PSP@k.")  # fmt: skip
@click.option("--validation-fraction", type=Number(), default=_DEFAULT.validation_fraction, show_default=True,
              help="Share of the train rows held out, by a hash.")  # fmt: skip
@click.option("--acceptance-fraction", type=Number(), default=_DEFAULT.acceptance_fraction, show_default=True,
              help="Share of the train rows that no stage learns from, by a hash: the gate compares models on them. "
                   "0: on test rows.")  # fmt: skip
@click.option("--split", type=click.Choice((_AUTO, *BY)), default=_AUTO, show_default=True,
              help="What is held out as a whole: a document (uid), a group (column group), a family (near-duplicates), "
                   "or the last documents (time). auto: as before; for a new dataset time, if test documents are "
                   "later ones, group, if there are groups, family, if validation would otherwise be nearer to train "
                   "than test is, or uid.")  # fmt: skip
@click.option("--test-fraction", type=Number(), default=_DEFAULT.test_fraction, show_default=True,
              help="Share of the rows split off as test if a folder of tables has no test file.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="KIND",
              help=f"Accept one of {', '.join(Allowed.kinds())}; may be given several times.")  # fmt: skip
@click.option("--fields", multiple=True, default=_DEFAULT.fields, show_default=True, metavar="COLUMN",
              help="title or content; may be given twice. Columns joined by a space into a text.")  # fmt: skip
@click.option("--max-line-bytes", type=int, default=_DEFAULT.max_line_bytes, show_default=True,
              help="Longest line of a text file (Parquet, CSV and TSV have no limit).")  # fmt: skip
@click.option(
    "--label-separator",
    default=_DEFAULT.label_separator,
    show_default=True,
    help="Separates the labels in a text of labels, such as a CSV cell.",
)
@click.option("--replace", is_flag=True, help="Replace a dataset of that name.")
@click.option("--allow-loss", type=Number(0, 1), default=None, metavar="SHARE",
              help="Share of the documents, labels, pairs or test documents that a replacement may lack.  [default: "
                   "the dataset's update.allow_loss, 0.1]")  # fmt: skip
@new_times_option
def ingest(
    path: Path, dataset: str, replace: bool, allow_loss: float | None, new_times: bool, split: str, **settings: object
) -> None:
    """Check the folder PATH and make it the dataset NAME.

    The layout is found by the file names: XC repository JSON, XC text, PECOS, or tables
    (Parquet, CSV, TSV, JSON lines; docs/data-formats.md).
    A dataset that is there keeps its settings; an option changes one of them.
    Reading is strict: the first thing that is wrong is named with its file and line, and nothing is written.
    """
    workspace = Workspace.find()
    checked_name("dataset", dataset)
    is_new = dataset not in workspace.params.datasets()
    current = _DEFAULT if is_new else workspace.params.dataset(dataset).corpus
    config = _config(settings if split == _AUTO else {**settings, "split": split}, current)
    ran = place(workspace, path, dataset, config, replace=replace, choose=is_new and split == _AUTO,
                allow_loss=allow_loss, new_times=new_times)  # fmt: skip
    rows = ", ".join(f"{count:,} {split}" for split, count in ran.facts["rows"].items())
    click.echo(f"{dataset}: {rows} documents, {counted(ran.facts['labels'], 'label')}")
    _report_shared(Corpus.open(ran.folder), config)
    if is_new and split == _AUTO:
        _report_times(ran.facts["split"])
    if not is_new and config.split != current.split and ran.facts["split"]["given"]:
        report(
            f"ingest: --split {config.split} chooses no validation documents, because the validation file has them; if "
            "an update wrote it (val.json), move its lines into trn.json, delete it and ingest again"
        )
    dagster = os.environ.get("XC_STATE_DIR") or workspace.state / "dagster"
    if is_new and Path(dagster).is_dir():  # `xc ui` was started before
        report(f"Dagster shows {dataset} by itself, and its schedules after Deployment > Reload definitions in the UI")
    show_next(workspace, dataset)


def _config(options: dict[str, Any], current: IngestConfig) -> IngestConfig:
    """Return the settings: the options that were given, all others as they were."""
    source = click.get_current_context().get_parameter_source
    given = {name: value for name, value in options.items() if source(name) is not ParameterSource.DEFAULT}
    if not current.validation_fraction and "validation_fraction" not in given:
        current = dataclasses.replace(current, validation_fraction=_DEFAULT.validation_fraction)
        report(
            f"ingest: validation_fraction is {_DEFAULT.validation_fraction} again; xc update and xc forget set it to 0 "
            "beside a validation file. To hold nothing out: --validation-fraction 0"
        )
    current = dataclasses.replace(current, layout=_DEFAULT.layout)  # new files may have another one
    unchanged = {name: value for name, value in plain(current).items() if name not in given}
    if listed := [f"{name} {value}" for name, value in unchanged.items() if value != plain(_DEFAULT)[name]]:
        report(f"ingest: settings that stay as they were: {', '.join(listed)}")
    return dataclasses.replace(current, **given)


def _report_shared(corpus: Corpus, config: IngestConfig) -> None:
    """Report if many test texts also appear in train or validation, because metrics are then too good."""
    shared, tests = corpus.shared("title", "content"), len(corpus.rows(TEST))
    if shared > MOST_SHARED * tests and "shared-texts" not in config.allow:
        report(
            f"{shared:,} of {tests:,} test texts ({shared / tests:.0%}) also appear in train or validation, word for "
            "word, which makes metrics too good; drop them, or pass --allow shared-texts, without which Dagster stops "
            "here"
        )


def _report_times(split: dict[str, Any]) -> None:
    """Report if all documents have a time, and test documents are drawn all the same."""
    if "later_tests" in split and "some_are_tests" in split:
        report(
            "ingest: every document has a time, but the test documents are drawn from all times; if the model is for "
            "later documents, test it on the last ones: ingest again with --split time --replace --allow-loss 1"
        )


def _split_for(facts: dict[str, Any]) -> str:
    """Return the best split for a corpus, given the facts of its split by uid. It depends on texts, never on labels."""
    split = facts["split"]
    if split.get("later_tests", 0.0) >= _LATER and not split["given"]:
        return "time"
    if split["grouped"]:
        return "group"
    return "family" if facts["nearness"].get("nearer") and not split["given"] else "uid"


def _split_by_data(staging: Workspace, dataset: str, config: IngestConfig, ran: Ran) -> tuple[Ran, IngestConfig]:
    """Split the corpus again if its data ask for another split; return it, and its settings."""
    split = _split_for(ran.facts)
    if split == config.split:
        return ran, config
    what = "the last documents are held out" if split == "time" else f"a {split} is held out as a whole"
    report(f"ingest: splitting again with --split {split}: {what}")
    report("ingest: the lines above are of the first split, those below of the second")
    config = dataclasses.replace(config, split=split)
    staging.params.declare_dataset(dataset, config)
    if is_enough(config, ran.facts):  # the corpus has all that families need, so no file is read again
        return recut_corpus(staging, dataset), config
    return run_stage(staging, "corpus", dataset), config


class Accepted(TypedDict, total=False):
    """What a replacement may do to a dataset."""

    allow_loss: float | None
    """Share of documents, labels, pairs or test documents that may be gone; without it that of the dataset."""
    new_times: bool
    """True if known documents may have other times that are close to one another (``check_times``)."""


def place(
    workspace: Workspace,
    path: Path,
    dataset: str,
    config: IngestConfig,
    *,
    replace: bool,
    choose: bool = False,
    **accepted: Unpack[Accepted],
) -> Ran:
    """Ingest ``path`` in a scratch workspace and move the result in; nothing of ``workspace`` changes on an error.

    With ``choose`` the split is chosen by the data, and written to params.yaml. Raises RefusedError for a replacement
    that loses or changes more than is ``accepted``.
    """
    _refuse_project(workspace, path)
    _, source = open_source(path, config.layout, config.read_options())
    report_unread(path, source.files)
    command, target = incoming.command("ingest", path, source.files, dataset, config), workspace.raw(dataset)
    with scratch(workspace, dataset) as staging:
        if incoming.interrupted(workspace, dataset, command):
            return _finished_result(workspace, dataset)
        in_place = target.exists() and path.resolve() == target.resolve()
        if target.exists() and not replace and not in_place:
            raise UsageError(
                f"a dataset {dataset!r} at {target.parent}",
                expected="a new name",
                do="choose another name, or pass --replace",
            )
        staging.params.declare_dataset(dataset, config)
        if in_place:
            staging.home(dataset).mkdir(parents=True)
            staging.raw(dataset).symlink_to(target.resolve())
        else:
            _copy(path, source.files, staging.raw(dataset))
        ran = run_stage(staging, "corpus", dataset)
        if choose:
            ran, config = _split_by_data(staging, dataset, config, ran)
        kind = changed_by_hand(workspace, dataset) if in_place else Kind.REPLACE
        if not in_place and not accepted.get("new_times"):
            check_new_times(workspace, staging, dataset, config)
        difference = Arrival(workspace, staging, dataset, config, command, kind).install(accepted.get("allow_loss"))
    if difference is not None:
        _report_difference(difference)
    return Ran(workspace.folder("corpus", dataset), False, ran.seconds, ran.facts, ran.costs)


def _report_difference(difference: Difference) -> None:
    report(f"ingest: {difference}")
    if difference.known_tests:
        report(
            f"ingest: {counted(difference.known_tests, 'test document')} had their text in train or validation, under "
            "another uid: models that were trained before know them. Without a column uid, rows are named by their "
            "place in the file: add one, or append new rows at the end"
        )


def _refuse_project(workspace: Workspace, path: Path) -> None:
    """Raise UsageError for a folder that holds the project itself, for instance "/"."""
    if workspace.root.resolve().is_relative_to(resolved(path)):
        raise UsageError(
            f"the folder {bare(str(path))}, which holds the project itself",
            expected="a folder with the files of one dataset",
            do="pass that folder, or copy the files into one",
        )


def _finished_result(workspace: Workspace, dataset: str) -> Ran:
    """Return the result of an ingest that was killed when all was read, and that the next command has finished."""
    report(f"ingest: {dataset} was complete when the last ingest was stopped; nothing is read again")
    incoming.forget(workspace, dataset)
    folder = workspace.folder("corpus", dataset)
    return Ran(folder, True, 0.0, dict(artifacts.read_made(folder).facts), {})


def _copy(folder: Path, files: list[Path], target: Path) -> None:
    """Copy the files that are read, and the licence and readme beside them."""
    target.mkdir(parents=True)
    for file in sorted({*files, *papers(folder)}):
        shutil.copyfile(file, target / file.name)
