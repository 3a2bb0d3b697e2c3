"""``xc compare``: two models of a dataset, or two scores of one, document by document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from xc_core.cli.options import dataset_option
from xc_core.metrics.names import titled

if TYPE_CHECKING:
    from xc_core.chain import Workspace
    from xc_core.metrics.ranking import PerDocument


@click.command(short_help="Show how certain it is that one recipe beats another.")
@dataset_option
@click.argument("ours")
@click.argument("theirs")
def compare(dataset: str, ours: str, theirs: str) -> None:
    """Print the difference of each metric between OURS and THEIRS on test documents, with a paired 95 % interval.

    Each is the name of an evaluated recipe, or RECIPE:SCORE for one of its scores alone, for instance ngame:classifier.
    Both are resampled together, so this sees differences that are smaller than either one's own interval. The interval
    is that of other test documents; for other seeds of the training see docs/python.md.
    """
    from xc_core.chain import Workspace
    from xc_core.chain.reports import stale_note
    from xc_core.metrics.paired import differences

    workspace = Workspace.find()
    found = differences(_figures(workspace, dataset, ours), _figures(workspace, dataset, theirs))
    for recipe in dict.fromkeys(name.partition(":")[0] for name in (ours, theirs)):
        if note := stale_note(workspace, dataset, recipe):
            click.echo(note, err=True)
    click.echo(f"{dataset}: {ours} minus {theirs}, points of percent")
    for name, difference in found.items():
        if math.isnan(difference.points):
            click.echo(f"{titled(name):<8}{'-':>8}   no test document has a label")
            continue
        verdict = "" if difference.clear else "   not clear"
        click.echo(
            f"{titled(name):<8}{difference.points:>+z8.2f}   [{difference.low:+z.2f}, {difference.high:+z.2f}]{verdict}"
        )


def _figures(workspace: Workspace, dataset: str, name: str) -> PerDocument:
    """Return the figures of each test document for RECIPE or RECIPE:SCORE.

    Raises MissingError if it is not evaluated, MovedError if it was evaluated on an older corpus, UsageError for an
    unknown score.
    """
    from xc_core.errors import UsageError, nearest
    from xc_core.metrics.evaluation import FUSION, Evaluation

    recipe, _, score = name.partition(":")
    _check_corpus(workspace, dataset, recipe)
    evaluation = workspace.open(Evaluation, dataset, recipe)
    found = evaluation.figures(score or FUSION)
    if found is None:
        known = evaluation.scores
        raise UsageError(
            f"score {score!r}{nearest(score, known)} of {recipe}",
            expected=f"one of {', '.join(known)}",
            do="fix the name after the colon",
        )
    return found


def _check_corpus(workspace: Workspace, dataset: str, recipe: str) -> None:
    from xc_core.chain.reports import check_evaluated, of_present_corpus
    from xc_core.errors import MovedError

    workspace.params.dataset(dataset)  # raises the error of an unknown name
    check_evaluated(workspace, dataset, recipe)
    if not of_present_corpus(workspace, dataset, recipe):
        raise MovedError(
            f"{recipe} evaluated on another corpus than there is now",
            expected="the present test documents",
            do=workspace.params.train_command(dataset, recipe),
        )
