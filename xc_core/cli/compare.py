"""``xc compare``: two models of a dataset, or two scores of one, document by document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import click

from xc_core.cli.options import dataset_option
from xc_core.metrics.names import titled
from xc_core.visible import counted

if TYPE_CHECKING:
    from xc_core.chain import Workspace
    from xc_core.metrics.ranking import PerDocument
    from xc_core.metrics.stored import StoredFigures
    from xc_core.shapes import I64


_TEST: Final = "test"


@click.command(short_help="Show how certain it is that one recipe beats another.")
@dataset_option
@click.option(
    "--on",
    type=click.Choice([_TEST, "validation"]),
    default=_TEST,
    show_default=True,
    help="The documents. Choose by validation documents, and report test documents of what was chosen.",
)
@click.argument("ours")
@click.argument("theirs")
def compare(dataset: str, on: str, ours: str, theirs: str) -> None:
    """Print the difference of each metric between OURS and THEIRS on the same documents, with a paired 95 % interval.

    Each is the name of a recipe, or RECIPE:SCORE for one of its scores alone, for instance ngame:classifier. Both are
    resampled together, so this sees differences that are smaller than either one's own interval.

    Validation documents are those that no score of the recipe had seen. It must be trained up to the stage fusion. A
    fusion is fitted on one half of them to rank the other half; RECIPE:rule is the fusion with its dial at 0, whether
    or not it is served.
    """
    from xc_core.chain import Workspace
    from xc_core.metrics.paired import differences

    workspace = Workspace.find()
    workspace.params.dataset(dataset)  # raises the error of an unknown name
    figures = (_on_test if on == _TEST else _on_validation)(workspace, dataset, ours, theirs)
    found = differences(*figures)
    click.echo(f"{dataset}: {ours} minus {theirs}, {counted(len(figures[0]), f'{on} document')}, points of percent")
    for name, difference in found.items():
        if math.isnan(difference.points):
            click.echo(f"{titled(name):<8}{'-':>8}   no {on} document has a label")
            continue
        verdict = "" if difference.clear else "   not clear"
        click.echo(
            f"{titled(name):<8}{difference.points:>+z8.2f}   [{difference.low:+z.2f}, {difference.high:+z.2f}]{verdict}"
        )


def _on_test(workspace: Workspace, dataset: str, ours: str, theirs: str) -> tuple[PerDocument, PerDocument]:
    """Return the figures of each test document for both models.

    Raises MissingError if it is not evaluated, MovedError if it was evaluated on an older corpus, UsageError for an
    unknown score.
    """
    from xc_core.chain.reports import check_evaluated
    from xc_core.metrics.evaluation import Evaluation

    def figures(model: str) -> PerDocument:
        recipe, _, score = model.partition(":")
        check_evaluated(workspace, dataset, recipe)
        _check_corpus(workspace, "evaluation", dataset, recipe)
        return _of(workspace.open(Evaluation, dataset, recipe).stored, recipe, score)

    return figures(ours), figures(theirs)


def _on_validation(workspace: Workspace, dataset: str, ours: str, theirs: str) -> tuple[PerDocument, PerDocument]:
    """Return the figures of the validation documents that both models have figures of.

    Raises MissingError if there are none, MovedError if they are of an older corpus, UsageError for an unknown score.
    """
    import numpy as np

    from xc_core.errors import MissingError
    from xc_core.metrics.validation import open_validation

    def stored(model: str) -> tuple[PerDocument, I64]:
        recipe, _, score = model.partition(":")
        found = open_validation(workspace.folder("fusion", dataset, recipe))
        if found is None:
            raise MissingError(
                f"no figures of validation documents of {recipe} on {dataset}",
                expected="a fusion by this version, with validation documents that no score had seen",
                do=f"xc run fusion --dataset {dataset} --recipe {recipe} --force",
            )
        _check_corpus(workspace, "fusion", dataset, recipe)
        return _of(found, recipe, score), found.rows

    (our_figures, our_rows), (their_figures, their_rows) = stored(ours), stored(theirs)
    both, at_ours, at_theirs = np.intersect1d(our_rows, their_rows, assume_unique=True, return_indices=True)
    if not len(both):
        raise MissingError(
            f"no validation document that neither {ours} nor {theirs} had seen",
            expected="at least one",
            do="give both the same classifier.refit, encoder.refit and fusion.rows",
        )
    return our_figures.rows(at_ours), their_figures.rows(at_theirs)


def _of(stored: StoredFigures, recipe: str, score: str) -> PerDocument:
    """Return the figures of a score, by default of the whole model; raise UsageError for an unknown score."""
    from xc_core.errors import UsageError, nearest
    from xc_core.metrics.evaluation import FUSION

    found = stored.of(score or FUSION)
    if found is None:
        known = stored.names
        raise UsageError(
            f"score {score or FUSION!r}{nearest(score, known)} of {recipe}",
            expected=f"one of {', '.join(known)}",
            do="fix the name after the colon",
        )
    return found


def _check_corpus(workspace: Workspace, stage: str, dataset: str, recipe: str) -> None:
    """Raise MovedError if the figures of a stage are of another corpus than there is now."""
    from xc_core.chain.reports import of_present_corpus
    from xc_core.errors import MovedError

    if not of_present_corpus(workspace, dataset, recipe, stage):
        raise MovedError(
            f"{recipe} measured on another corpus than there is now",
            expected="the present documents",
            do=workspace.params.train_command(dataset, recipe),
        )
