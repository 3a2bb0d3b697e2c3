"""All stages of the pipeline: what each reads and what it makes. Cheap to import: it does not import a stage's code.

The name of a stage is its module in ``stages``, its Dagster asset, its data folder, its DVC stage and its test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from xc_core.errors import ConfigError, nearest

Scope = Literal["dataset", "experiment"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage."""

    name: str
    scope: Scope
    """Runs once per dataset, or once per dataset and recipe."""
    deps: tuple[str, ...]
    """Stages whose artefacts it reads."""
    group: str
    """Its group in the graph: data, training, search, release."""
    does: str
    """One sentence for people."""
    kinds: tuple[str, ...] = ("numpy",)
    """Technologies that the graph shows."""
    on_gpu: bool = False
    """In Dagster it runs in the pool "gpu", on a GPU of its own if there is one; other stages run on the CPU there."""
    shared: bool = False
    """Several processes under torchrun can run it together."""
    versioned: bool = True
    """False if the result holds timings, so that DVC does not version it."""
    code_version: str = "1"
    """Increment when a code change alters the results."""
    needs_source: bool = False
    """Reads the dataset's raw folder."""

    @property
    def compares(self) -> bool:
        """True for a stage that runs per dataset and reads the artefacts of all its experiments (leaderboard)."""
        return self.scope == "dataset" and any(STAGES[dep].scope == "experiment" for dep in self.deps)

    def command(self, dataset: str, recipe: str | None) -> str:
        """Return the command that runs it."""
        recipe_option = f" --recipe {recipe}" if self.scope == "experiment" else ""
        return f"xc run {self.name} --dataset {dataset}{recipe_option}"


_ALL: Final = (
    Stage(
        name="corpus",
        scope="dataset",
        deps=(),
        group="data",
        kinds=("polars", "parquet"),
        does="Reads a folder of texts in any public layout, strictly, into Parquet: documents, labels, pairs, filters.",
        needs_source=True,
        code_version="3",
    ),
    Stage(
        name="tokens",
        scope="dataset",
        deps=("corpus",),
        group="data",
        kinds=("huggingface", "numpy"),
        does="Tokenises all documents and labels once per tokenizer, ragged, without padding.",
    ),
    Stage(
        name="encoder",
        scope="experiment",
        deps=("corpus", "tokens"),
        group="training",
        kinds=("pytorch", "huggingface"),
        does="Trains the encoder (M1): a document's vector moves near the vectors of its labels' texts. "
        "Joint recipes train a classifier row per label at the same time.",
        on_gpu=True,
        shared=True,
    ),
    Stage(
        name="embeddings",
        scope="experiment",
        deps=("corpus", "tokens", "encoder"),
        group="training",
        kinds=("pytorch", "numpy"),
        does="Encodes all documents and labels with the trained encoder.",
        on_gpu=True,
        shared=True,
    ),
    Stage(
        name="clusters",
        scope="experiment",
        deps=("corpus", "embeddings"),
        group="training",
        kinds=("pytorch", "numpy"),
        does="Groups similar train and validation documents into clusters of equal size. A mini-batch of whole "
        "clusters gives the training of the classifier hard negatives.",
        on_gpu=True,
    ),
    Stage(
        name="negatives",
        scope="experiment",
        deps=("corpus", "embeddings"),
        group="training",
        kinds=("faiss", "numpy"),
        does="Finds the hard negatives of each document (M2): wrong labels whose texts are near it. Used by recipes "
        "whose classifier trains on stored hard negatives (ance); empty for the others.",
        on_gpu=True,
        shared=True,
    ),
    Stage(
        name="classifier",
        scope="experiment",
        deps=("corpus", "encoder", "embeddings", "clusters", "negatives"),
        group="training",
        kinds=("pytorch",),
        does="Trains the classifier, a row per label (M4), from the vector of the label's text (M3); the encoder is "
        "frozen.",
        on_gpu=True,
        shared=True,
        code_version="2",
    ),
    Stage(
        name="scores",
        scope="experiment",
        deps=("corpus", "embeddings", "classifier"),
        group="search",
        kinds=("faiss", "numpy"),
        does="Fits every score of the recipe, such as label text, classifier rows, neighbours or words, and builds the "
        "search indexes (ANN); measures their recall against exact search.",
        code_version="3",
    ),
    Stage(
        name="fusion",
        scope="experiment",
        deps=("corpus", "embeddings", "scores"),
        group="search",
        does="Fits the fusion on validation documents: it combines a candidate label's scores into one.",
        code_version="10",
    ),
    Stage(
        name="evaluation",
        scope="experiment",
        deps=("corpus", "encoder", "embeddings", "classifier", "scores", "fusion"),
        group="release",
        does="Evaluates the model on test documents: precision (P@k), precision with a higher weight for rare labels "
        "(PSP@k), nDCG, recall, confidence intervals, plots.",
        code_version="7",
    ),
    Stage(
        name="audit",
        scope="experiment",
        deps=("corpus", "embeddings", "clusters", "classifier"),
        group="release",
        does="Measures the mini-batches that the classifier trained on: hard negatives held and missed, "
        "NGAME's Theorem 1.",
    ),
    Stage(
        name="model",
        scope="experiment",
        deps=("corpus", "encoder", "scores", "fusion", "evaluation"),
        group="release",
        kinds=("mlflow",),
        does="Packs what a service needs into one folder, without pickle. Dagster registers it in MLflow; it becomes "
        "the champion, the version that is served, unless it is worse than the present one.",
    ),
    Stage(
        name="leaderboard",
        scope="dataset",
        deps=("evaluation",),
        group="release",
        kinds=("polars",),
        does="Compares all evaluated recipes of the dataset: metrics, intervals and costs in one table.",
        versioned=False,
    ),
)

STAGES: Final[dict[str, Stage]] = {stage.name: stage for stage in _ALL}
"""All stages, each after those it reads."""
TRAIN_STAGES: Final = tuple(name for name, stage in STAGES.items() if not stage.compares)
"""Names of the stages of `xc train`: all but the leaderboard, which reads every recipe of a dataset."""


def find_stage(name: str) -> Stage:
    """Return the stage ``name``; raise ConfigError, naming the nearest, if there is none."""
    if name not in STAGES:
        raise ConfigError(
            f"stage {name!r}{nearest(name, STAGES)}", expected=f"one of {', '.join(STAGES)}", do="fix the name"
        )
    return STAGES[name]


def versioned_stages(scope: Scope) -> list[Stage]:
    """Return the stages of a scope whose results are versioned, each after those it reads."""
    return [stage for stage in _ALL if stage.scope == scope and stage.versioned]
