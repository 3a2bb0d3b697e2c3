"""What a refresh may keep: rows of the same settings and encoder that learnt from no document that is held out now."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from xc_core import manifests
from xc_core.chain.dataset import Partition
from xc_core.chain.fingerprints import differing, only_inputs, other_settings
from xc_core.chain.registry import Stage
from xc_core.chain.workspace import Workspace
from xc_core.data.corpus import Corpus
from xc_core.errors import MissingError, MovedError, XCError

REFRESHED: Final = "classifier"
"""The stage with a refresh of its own: it keeps trained rows. The stages around it only accept the older encoder."""
TRAINED: Final = ("encoder", REFRESHED)
"""The stages whose older artefact a refresh keeps."""
REFRESHED_FROM: Final = "refreshed_from"
"""Fact of a refreshed artefact: the digest of the one whose rows it keeps."""


def untrained(workspace: Workspace, dataset: str, recipe: str) -> str | None:
    """Return the first stage that a refresh keeps and that was never run for a recipe, None if there is none."""
    for name in TRAINED:
        try:
            manifests.read_manifest(workspace.folder(name, dataset, recipe))
        except MissingError:
            return name
        except XCError:
            continue  # a damaged artefact was trained
    return None


def check_trained(workspace: Workspace, stage: Stage, partition: Partition) -> None:
    """Raise an error if a refresh would have to train, because it cannot keep the present artefact of ``stage``.

    MissingError for a recipe that was never trained, MovedError for its encoder: the rows would fit no other one.
    """
    dataset, recipe = partition.key
    assert recipe is not None
    train = workspace.params.train_command(dataset, recipe)
    if name := untrained(workspace, dataset, recipe):
        raise MissingError(
            f"no {name} of {dataset}/{recipe} that a refresh could keep",
            expected="a trained model",
            do=f"train: {train}",
        )
    if stage.name != REFRESHED:
        raise MovedError(
            f"{stage.name} of {dataset}/{recipe} with other settings or code, or damaged",
            expected="the trained encoder, which a refresh keeps",
            do=f"restore it or its settings, or train: {train}",
        )


def check_training(workspace: Workspace, stage: Stage, partition: Partition, digests: dict[str, str]) -> None:
    """Raise MovedError if a refresh would keep rows of other settings or code, or of another encoder.

    ``digests`` are those of the parts that the result depends on now.
    """
    made = workspace.made(stage.name, *partition.key)
    train = f"train: {stage.command(*partition.key)}"
    changed = [name for name in differing(dict(made.depends), digests) if not only_inputs([name])]
    if made.fingerprint and changed:
        fields = [f"{stage.name}.{name}" for name in other_settings(made, partition.settings(stage.name))]
        raise MovedError(
            f"rows that were trained with other {' and '.join(changed)}" + (f": {', '.join(fields)}" if fields else ""),
            expected="the settings and the code that the rows were trained with",
            do=f"{train}, without --refresh" + (", or set the settings back" if fields else ""),
        )
    if made.fingerprint and made.depends.get("encoder") != digests.get("encoder"):
        raise MovedError(
            "rows that were trained on the vectors of another encoder",
            expected="the encoder that the rows were trained with",
            do=f"{train}, without --refresh",
        )


def check_unseen(workspace: Workspace, partition: Partition) -> None:
    """Raise MovedError if the kept rows, or their encoder, learnt from documents that are test, or held out, now.

    The refresh of the rows checks this too, but only once all texts are encoded again.
    """
    from xc_core.classifiers import LabelTables

    folder = workspace.folder("classifier", *partition.key)
    with suppress(MissingError):
        tables = LabelTables.open(folder)
        tables.check_unseen(workspace.open(Corpus, partition.dataset.name))
