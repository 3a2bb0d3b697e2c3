"""``xc compare``: two models of a dataset, or two scores of one, document by document."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Final

import click

from xc_core import canonical
from xc_core.chain import Workspace
from xc_core.chain.reports import check_corpus, check_made, stale_note
from xc_core.cli.options import dataset_option
from xc_core.errors import MissingError, UsageError, nearest
from xc_core.metrics import paired, validation
from xc_core.metrics.evaluation import FUSION, Evaluation
from xc_core.metrics.names import RECALL, titled
from xc_core.metrics.ranking import PerDocument
from xc_core.metrics.stored import StoredFigures
from xc_core.shapes import I64
from xc_core.visible import counted

_TEST: Final = "test"
_LEFT_OUT_NOTE: Final = " without labels that reveal held-out documents"


@click.command(short_help="Show how certain it is that one recipe beats another.")
@dataset_option
@click.option(
    "--on",
    type=click.Choice([_TEST, "validation"]),
    default=_TEST,
    show_default=True,
    help="The documents. Choose by validation documents, and report test documents of what was chosen.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.argument("ours")
@click.argument("theirs")
def compare(dataset: str, on: str, as_json: bool, ours: str, theirs: str) -> None:
    """Print the difference of each metric between OURS and THEIRS on the same documents, with a paired 95 % interval.

    Each is the name of a recipe, or RECIPE:SCORE for one of its scores alone, for instance ngame:classifier. Both are
    resampled together, so this sees differences that are smaller than either one's own interval. The interval is that
    of other documents; for other seeds of the training see docs/python.md. A difference is clear if the interval
    excludes 0 and the figures of at least six documents differ.

    Validation documents are those that no score of either recipe had seen, without those of which one recipe leaves a
    label out (docs/data-formats.md). Both must be trained up to the stage fusion. A fusion is fitted on one half of
    them to rank the other half; RECIPE:rule is the fusion with its dial at 0, whether or not it is served.

    The last lines are the recall@5 of head, torso and tail labels, which have more than 20, 4 to 20, and at most 3
    train and validation documents. Pairs are those of a document and a true label.
    """
    workspace = Workspace.find()
    workspace.params.dataset(dataset)  # raises the error of an unknown name
    _check_different(ours, theirs)
    figures = (_on_test if on == _TEST else _on_validation)(workspace, dataset, ours, theirs)
    changes, pairs = paired.differences(*figures), figures[0].den
    rows = {name: {**asdict(change), "clear": change.clear} for name, change in changes.items()}
    rows |= {name: {**rows[name], "pairs": int(pairs[name].sum())} for name in RECALL.values() if name in rows}
    stage = "evaluation" if on == _TEST else "fusion"
    by_recipe = {name.partition(":")[0]: measured for name, measured in zip((ours, theirs), figures, strict=True)}
    for recipe, measured in by_recipe.items():
        if note := stale_note(workspace, dataset, recipe, stage):
            click.echo(note, err=True)
        if not set(RECALL.values()) <= measured.num.keys():
            remedy = f"make it again: xc run {stage} --dataset {dataset} --recipe {recipe} --force"
            gap = f"the stage {stage} of {recipe} has no figures of head, torso and tail labels"
            click.echo(f"note: {gap}; {remedy}", err=True)
    if as_json:
        head = {"dataset": dataset, "ours": ours, "theirs": theirs, "on": on, "documents": len(figures[0])}
        click.echo(canonical.line({**head, "metrics": rows}))
        return
    click.echo(f"{dataset}: {ours} minus {theirs}, {counted(len(figures[0]), f'{on} document')}, points of percent")
    for name, row in rows.items():
        if "pairs" not in row:
            click.echo(_line(titled(name), row, f"no {on} document has a label"))
    if any("pairs" in row for row in rows.values()):
        click.echo("recall@5 of labels by their number of train and validation documents:")
    for name, metric in RECALL.items():
        if metric in rows:
            left_out = _LEFT_OUT_NOTE if on != _TEST and not rows[metric]["pairs"] else ""
            click.echo(_line(name, rows[metric], counted(rows[metric]["pairs"], "pair") + left_out))


def _check_different(ours: str, theirs: str) -> None:
    """Raise UsageError if both names are of the same score of the same recipe."""
    models = [name.partition(":")[::2] for name in (ours, theirs)]
    if len({(recipe, score or FUSION) for recipe, score in models}) == 1:
        raise UsageError(
            f"{ours} and {theirs}, which are the same",
            expected="two different recipes or scores",
            do="name another recipe, or one of its scores as RECIPE:SCORE",
        )


def _line(title: str, row: dict[str, Any], basis: str) -> str:
    """Return a line of the table; ``basis`` says which pairs it is of, or why there is no figure."""
    if math.isnan(row["points"]):
        return f"{title:<8}{'-':>8}   {basis}"
    pairs, verdict = f"   {basis}" if "pairs" in row else "", "" if row["clear"] else "   not clear"
    if verdict and (row["low"] > 0 or row["high"] < 0):
        verdict += f": only {counted(row['differing'], 'document')} {'differs' if row['differing'] == 1 else 'differ'}"
    return f"{title:<8}{row['points']:>+z8.2f}   [{row['low']:+z.2f}, {row['high']:+z.2f}]{pairs}{verdict}"


def _on_test(workspace: Workspace, dataset: str, ours: str, theirs: str) -> tuple[PerDocument, PerDocument]:
    """Return the figures of each test document for both models.

    Raises MissingError if it is not evaluated, MovedError if it was evaluated on an older corpus, UsageError for an
    unknown score.
    """

    def figures(model: str) -> PerDocument:
        recipe, _, score = model.partition(":")
        check_made(workspace, "evaluation", dataset, recipe)
        check_corpus(workspace, "evaluation", dataset, recipe)
        return _figures_of(workspace.open(Evaluation, dataset, recipe).stored, recipe, score)

    return figures(ours), figures(theirs)


def _on_validation(workspace: Workspace, dataset: str, ours: str, theirs: str) -> tuple[PerDocument, PerDocument]:
    """Return the figures of the validation documents that both models have figures of, by the same labels.

    Each model leaves out labels that reveal its held-out documents (``HeldOut``); which these are depends on
    ``classifier.refit``. A document with such a label in one model alone is left out: its denominators of PSP@k differ.

    Raises MissingError if there are none, MovedError if they are of an older corpus, UsageError for an unknown score.
    """

    def stored(model: str) -> tuple[PerDocument, I64]:
        recipe, _, score = model.partition(":")
        check_made(workspace, "fusion", dataset, recipe)
        figures = validation.open_validation(workspace.folder("fusion", dataset, recipe))
        if figures is None:
            measured = workspace.made("fusion", dataset, recipe).facts.get("documents")
            raise MissingError(
                f"no figures of validation documents of {recipe} on {dataset}",
                expected="a fusion by this version, with validation documents that no score had seen",
                do=f"xc run fusion --dataset {dataset} --recipe {recipe} --force"
                if measured
                else "hold documents out (datasets.*.corpus.validation_fraction), and train with encoder.refit=false",
            )
        check_corpus(workspace, "fusion", dataset, recipe)
        return _figures_of(figures, recipe, score), figures.rows

    figures = paired.matched(*stored(ours), *stored(theirs))
    if not len(figures[0]):
        raise MissingError(
            f"no validation document that neither {ours} nor {theirs} had seen, with the same labels for both",
            expected="at least one",
            do="give both the same classifier.refit, encoder.refit and fusion.rows",
        )
    return figures


def _figures_of(stored: StoredFigures, recipe: str, score: str) -> PerDocument:
    """Return the figures of a score, by default of the whole model; raise UsageError for an unknown score."""
    figures = stored.of(score or FUSION)
    if figures is None:
        names = stored.names
        raise UsageError(
            f"score {score or FUSION!r}{nearest(score, names)} of {recipe}",
            expected=f"one of {', '.join(names)}",
            do="fix the name after the colon" if score else f"name a score: {recipe}:{names[0]}",
        )
    return figures
