"""``xc compare``: two models of a dataset, or two scores of one, document by document.

Takes: evaluations.             Gives: a table of differences with intervals.
May import: metrics, stages.    Never: evaluates anything itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from xc_core.metrics.ranking import PerDocument
    from xc_core.stages import Workspace

_FUSION: Final = "fusion"


@click.command(short_help="Say how sure it is that one recipe beats another.")
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.argument("ours")
@click.argument("theirs")
def compare(dataset: str, ours: str, theirs: str) -> None:
    """Print the difference of each metric between OURS and THEIRS on test documents, with a paired 95 % interval.

    Each is the name of an evaluated recipe, or RECIPE:SCORE for one of its scores alone, for instance ngame:classifier.
    Both are resampled together, so this sees differences that are smaller than either one's own interval.
    """
    from xc_core.metrics.paired import differences
    from xc_core.stages import Workspace

    workspace = Workspace.find()
    _of_one_corpus(workspace, dataset, ours, theirs)
    found = differences(_figures(workspace, dataset, ours), _figures(workspace, dataset, theirs))
    click.echo(f"{dataset}: {ours} minus {theirs}, points of percent")
    for name, difference in found.items():
        verdict = "" if difference.clear else "   not clear"
        click.echo(
            f"{name.replace('_at_', '@'):<8}{difference.points:>+8.2f}   "
            f"[{difference.low:+.2f}, {difference.high:+.2f}]{verdict}"
        )


def _of_one_corpus(workspace: Workspace, dataset: str, *names: str) -> None:
    """Raise MovedError where the evaluations are of different documents, MissingError where there is none."""
    from xc_core import artifacts
    from xc_core.errors import MovedError

    folders = [_folder(workspace, dataset, name) for name in names]
    corpora = [str(artifacts.verify(folder, kind="evaluation").facts.get("corpus")) for folder in folders]
    now = workspace.corpus_digest(dataset)
    old = [name for name, corpus in zip(names, corpora, strict=True) if corpus != now]
    if old:
        raise MovedError(
            f"{' and '.join(old)} evaluated on another corpus than there is now",
            expected="the same test documents, those of today",
            do="; ".join(f"xc train --dataset {dataset} --recipe {name.partition(':')[0]}" for name in old),
        )


def _folder(workspace: Workspace, dataset: str, name: str) -> Path:
    """Return the evaluation of RECIPE or RECIPE:SCORE; raise MissingError, with what there is, where there is none."""
    from xc_core.artifacts import MANIFEST
    from xc_core.errors import MissingError, nearest

    recipe = name.partition(":")[0]
    workspace.experiment(dataset, None)  # says what is wrong with the dataset's name
    folder = workspace.folder("evaluation", dataset, recipe)
    if not (folder / MANIFEST).is_file():
        folders = {other: workspace.folder("evaluation", dataset, other) for _, other in workspace.experiments(dataset)}
        have = [other for other, own in folders.items() if (own / MANIFEST).is_file()]
        raise MissingError(
            f"no evaluation of {recipe!r} on {dataset}{nearest(recipe, have)}",
            expected=f"one of {', '.join(have)}" if have else "an evaluated recipe; there is none yet",
            do=f"xc train --dataset {dataset} --recipe {recipe}",
        )
    return folder


def _figures(workspace: Workspace, dataset: str, name: str) -> PerDocument:
    """Return the figures of each test document for RECIPE or RECIPE:SCORE; raise UsageError for an unknown score."""
    import numpy as np

    from xc_core.errors import UsageError, nearest
    from xc_core.metrics.ranking import unpacked

    score = name.partition(":")[2] or _FUSION
    arrays = np.load(_folder(workspace, dataset, name) / "per_document.npz")
    found = unpacked(arrays, score)
    if found is None:
        known = sorted({key.partition("/")[0] for key in arrays})
        raise UsageError(
            f"score {score!r}{nearest(score, known)} of {name}",
            expected=f"one of {', '.join(known)}",
            do="mend the name after the colon; after an update of xc, run xc evaluate first",
        )
    return found
