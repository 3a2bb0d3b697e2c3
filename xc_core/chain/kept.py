"""What a refresh may keep: parts of the same settings that have not learnt from a document of today's test."""

from __future__ import annotations

from xc_core import artifacts
from xc_core.chain import changelog
from xc_core.chain.dataset import Partition
from xc_core.chain.depends import differing, only_inputs
from xc_core.chain.registry import Stage
from xc_core.chain.workspace import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST
from xc_core.errors import MovedError
from xc_core.params import plain


def check_training(workspace: Workspace, stage: Stage, partition: Partition, now: dict[str, str]) -> None:
    """Raise MovedError if a refresh would keep rows that were trained with other settings or code; ``now``: depends."""
    made = artifacts.read_made(workspace.folder(stage.name, *partition.place))
    settings = plain(partition.settings(stage.name))
    other = [name for name in differing(dict(made.depends), now) if not only_inputs([name])]
    if made.fingerprint and other:
        known = made.settings if isinstance(made.settings, dict) else {}
        fields = [f"{stage.name}.{name}" for name in settings if known.get(name) != settings[name]]
        raise MovedError(
            f"rows that were trained with other {' and '.join(other)}" + (f": {', '.join(fields)}" if fields else ""),
            expected="the settings and the code that the rows were trained with",
            do=f"set them back, or train: xc run {stage.name}, without --refresh",
        )


def check_unseen(workspace: Workspace, stage: Stage, partition: Partition) -> None:
    """Raise MovedError if a document that the stage's artefact may have learnt from is a test document now.

    The changelog tells; where it does not lead back to the artefact's corpus, nothing is checked.
    """
    dataset, recipe = partition.place
    was = artifacts.read_made(workspace.folder(stage.name, dataset, recipe)).depends.get("corpus")
    if was is None:
        return
    corpus = Corpus.open(workspace.folder("corpus", dataset))
    moved = changelog.moved_since(workspace, dataset, was, corpus.digest)
    if moved and (seen := sorted(moved.intersection(corpus.uids(corpus.rows(TEST))))):
        raise MovedError(
            f"{len(seen):,} test documents that were in train or validation when {stage.name} of {dataset}/{recipe} "
            f"was made (the first: {seen[0]})",
            expected="test documents that no kept part has learnt from; figures would be too good",
            do=f"train again: xc train --dataset {dataset} --recipe {recipe}; or give new files in which these "
            "documents keep their place",
        )
