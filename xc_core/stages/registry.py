"""All stages: the one place that says which there are, what they need and what they give.

Takes: nothing.           Gives: STAGES.
May import: nothing heavy.  Never: imports a stage's code (it is named, and imported when it runs).

The name of a stage is its module here, its Dagster asset, its data folder, its DVC stage and its test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Scope = Literal["dataset", "experiment"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One station."""

    name: str
    scope: Scope
    """Whether it runs once a dataset, or once a dataset and recipe."""
    deps: tuple[str, ...]
    """Stages whose artefacts it reads."""
    group: str
    """Where it stands in the graph: data, training, search, release."""
    does: str
    """One sentence for people."""
    trains: bool = False
    """True where it wants an accelerator and a place in the pool ``gpu``."""
    metrics: tuple[str, ...] = ()
    """Files of the artefact that DVC shows as metrics."""
    versioned: bool = True
    """False where the result holds timings and is therefore no DVC output."""
    code_version: str = "1"
    """Raised when the code changes what the stage gives for the same inputs and parameters."""
    needs_source: bool = False
    """True where it reads the dataset's raw folder."""
    settings_of: tuple[str, ...] = ()
    """Settings of other stages that it reads, as stage.field: a change of one makes it stale too."""


_ALL: Final = (
    Stage(
        name="corpus",
        scope="dataset",
        deps=(),
        group="data",
        does="Reads a folder of text in any public layout, strictly, into Parquet: documents, labels, pairs, filters.",
        needs_source=True,
    ),
    Stage(
        name="tokens",
        scope="dataset",
        deps=("corpus",),
        group="data",
        does="Tokenises all documents and labels once per tokenizer, ragged, without padding.",
    ),
    Stage(
        name="encoder",
        scope="experiment",
        deps=("corpus", "tokens"),
        group="training",
        does="M1: trains the encoder so that a document lies near the texts of its labels.",
        trains=True,
        code_version="5",
    ),
    Stage(
        name="embeddings",
        scope="experiment",
        deps=("corpus", "tokens", "encoder"),
        group="training",
        does="Encodes all documents and labels with the trained encoder.",
        trains=True,
        code_version="2",
    ),
    Stage(
        name="clusters",
        scope="experiment",
        deps=("corpus", "embeddings"),
        settings_of=("classifier.refit", "classifier.order.kind"),
        code_version="2",
        group="training",
        does="Groups train documents into balanced clusters and measures both sides of NGAME's Theorem 1.",
    ),
    Stage(
        name="negatives",
        scope="experiment",
        deps=("corpus", "embeddings", "clusters"),
        settings_of=("classifier.order", "classifier.seed"),
        code_version="2",
        group="training",
        does="M2: finds hard negatives by search, and how many of them a clustered batch holds anyway.",
    ),
    Stage(
        name="classifier",
        scope="experiment",
        deps=("corpus", "embeddings", "clusters", "negatives"),
        settings_of=("fusion.rows",),
        group="training",
        does="M3 and M4: trains a table row for every label, started at its text's vector.",
        trains=True,
        code_version="4",
    ),
    Stage(
        name="index",
        scope="experiment",
        deps=("corpus", "embeddings", "classifier"),
        group="search",
        does="Builds the search indexes over classifier rows and label texts; measures recall against exact search.",
    ),
    Stage(
        name="fusion",
        scope="experiment",
        deps=("corpus", "embeddings", "classifier", "index"),
        code_version="2",
        group="search",
        does="Fits the score-fusion tree on validation documents.",
    ),
    Stage(
        name="evaluation",
        scope="experiment",
        deps=(
            "corpus",
            "tokens",
            "encoder",
            "embeddings",
            "clusters",
            "negatives",
            "classifier",
            "index",
            "fusion",
        ),
        group="release",
        does="Judges the model on test documents: metrics, intervals, frequency deciles, plots.",
        code_version="2",
        metrics=("metrics.json",),
    ),
    Stage(
        name="model",
        scope="experiment",
        deps=("corpus", "tokens", "encoder", "embeddings", "classifier", "index", "fusion", "evaluation"),
        group="release",
        does="Packs what serving needs into one folder without pickle; the registry takes it from there.",
    ),
    Stage(
        name="leaderboard",
        scope="dataset",
        deps=("evaluation",),
        group="release",
        does="Compares all evaluated recipes of the dataset: metrics, intervals and costs in one table.",
        versioned=False,
    ),
)

STAGES: Final[dict[str, Stage]] = {stage.name: stage for stage in _ALL}
"""All stages, each after those it needs."""


def downstream(name: str) -> tuple[str, ...]:
    """Return the experiment's stages that need ``name``, directly or not, in order."""
    found: list[str] = []
    for stage in _ALL:
        if any(dep == name or dep in found for dep in stage.deps):
            found.append(stage.name)
    return tuple(found)
