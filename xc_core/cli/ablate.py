"""``xc ablate``: what each score of a recipe adds to its fusion, on validation documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from xc_core import canonical
from xc_core.chain import Workspace
from xc_core.chain.reports import check_corpus, check_made, stale_note
from xc_core.cli.options import dataset_option, recipe_option
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.errors import MissingError, UsageError, nearest
from xc_core.infer.ablation import METRICS, Ablation
from xc_core.metrics import paired
from xc_core.metrics.names import titled
from xc_core.metrics.paired import PairedDifference
from xc_core.metrics.ranking import PerDocument
from xc_core.recipes.settings import FusionSettings, inputs_of
from xc_core.scores import Scores
from xc_core.visible import counted

_DIVISIONS: Final = 3
_MOST_DIVISIONS: Final = 100


@click.command(short_help="Show what each score adds to the fusion of a recipe.")
@dataset_option
@recipe_option
@click.option("--without", "left_out", multiple=True, metavar="SCORE[,SCORE]",
              help="Leave out these scores together instead of each alone; may be given several times.")  # fmt: skip
@click.option("--only", "alone", multiple=True, metavar="SCORE[,SCORE]",
              help="Keep these scores alone; may be given several times.")  # fmt: skip
@click.option("--divisions", type=click.IntRange(1, _MOST_DIVISIONS), default=_DIVISIONS, show_default=True,
              help="Divisions of the documents into halves, of which the figures are means.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def ablate(
    dataset: str, recipe: str, left_out: tuple[str, ...], alone: tuple[str, ...], divisions: int, as_json: bool
) -> None:
    """Fit the fusion of a recipe on fewer of its scores, and print what that costs, with paired 95 % intervals.

    The documents are validation documents that no score had seen; test documents are not read. The fusion is fitted on
    one half of them to rank the other half, with its dial at 0. Without a score its candidates are left out too, so the
    figures are those of a recipe that never had it. Scores and encoder must be trained (xc train --until scores) and
    are not trained again.

    An interval is that of other documents, and does not allow for the number of figures: of twenty that change by
    chance alone, one is clear.
    """
    workspace = Workspace.find()
    settings: FusionSettings = workspace.params.experiment(dataset, recipe).settings("fusion")
    for stage in ("embeddings", "scores"):
        check_made(workspace, stage, dataset, recipe)
        check_corpus(workspace, stage, dataset, recipe)
    scores = workspace.open(Scores, dataset, recipe)
    rows = _rows(tuple(scores.parts), left_out, alone)
    if note := stale_note(workspace, dataset, recipe, "scores"):
        click.echo(note, err=True)
    corpus, embeddings = workspace.open(Corpus, dataset), workspace.open(Embeddings, dataset, recipe)
    ablation = Ablation.of(corpus, embeddings, scores, settings.rows, settings.candidates)
    whole = None if ablation is None else ablation.measure(settings.rule, inputs_of(scores.parts), divisions)
    if ablation is None or whole is None:
        raise MissingError(
            f"no validation documents of {dataset} that the scores of {recipe} had not seen, or all are of one family",
            expected="documents in two families at least",
            do="hold documents out (datasets.*.corpus.validation_fraction), and train with encoder.refit=false",
        )
    changes: dict[str, Mapping[str, PairedDifference]] = {}
    for title, kept in rows.items():
        part = inputs_of({name: scores.parts[name] for name in kept})
        measured = ablation.measure(settings.rule, part, divisions)
        changes[title] = {} if measured is None else paired.differences(measured, whole)
    head = {"dataset": dataset, "recipe": recipe, "documents": len(ablation), "divisions": divisions}
    if as_json:
        click.echo(canonical.line({**head, "fusion": whole.total(), "rows": _plain(changes)}))
        return
    click.echo(
        f"{dataset} / {recipe}: {counted(len(ablation), 'validation document')}, the dial at 0, mean of "
        f"{counted(divisions, 'division')} into halves"
    )
    _show(whole, len(scores.parts), changes)


def _rows(known: tuple[str, ...], left_out: Sequence[str], alone: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the scores that each row of the table keeps; raise UsageError for an unknown score or a row of none."""
    without = [_names(text, known, "--without") for text in left_out] or ([] if alone else [(name,) for name in known])
    rows = {f"without {', '.join(names)}": tuple(name for name in known if name not in names) for names in without}
    rows |= {f"only {', '.join(names)}": names for names in (_names(text, known, "--only") for text in alone)}
    for title, kept in rows.items():
        if not kept and left_out:
            raise UsageError(f"{title}: no score", expected="at least one score that is kept", do="leave out fewer")
    return rows


def _names(text: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(
                f"score {name!r}{nearest(name, known)} in {option}",
                expected=f"one of {', '.join(known)}",
                do="fix the name",
            )
    return tuple(name for name in known if name in names)


def _plain(changes: Mapping[str, Mapping[str, PairedDifference]]) -> dict[str, Any]:
    return {
        title: {name: {**asdict(change), "clear": change.clear} for name, change in row.items()}
        for title, row in changes.items()
    }


def _show(whole: PerDocument, scores: int, changes: Mapping[str, Mapping[str, PairedDifference]]) -> None:
    """Print the figures of the whole fusion, and below them the differences of each row."""
    total = whole.total()
    lines = [
        ["", *map(titled, METRICS)],
        [f"all {counted(scores, 'score')}", *(f"{total[name]:.2f}" for name in METRICS)],
    ]
    notes: dict[str, str] = {}
    for title, row in changes.items():
        lines.append([title, *(_cell(row[name]) if row else "" for name in METRICS)])
        if not row:
            notes[title] = "no score that searches, or none that is fused"
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    for title, *cells in lines:
        text = "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        click.echo(f"{title:<{widths[0]}}{notes.get(title, text)}".rstrip())
    click.echo("Points of percent; * clear: the interval excludes 0, and at least six documents differ.")


def _cell(change: PairedDifference) -> str:
    if math.isnan(change.points):
        return "-"
    return f"{change.points:+z.2f} [{change.low:+z.2f}, {change.high:+z.2f}]{'*' if change.clear else ''}"
