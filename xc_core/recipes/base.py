"""A recipe: for each stage of the chain, the config of the part it runs.

Takes: configs of the owners.                        Gives: Recipe and the table of recipes.
May import: errors, plugins, the rooms of rank 1 to 4.  Never: code of a stage; a branch on a recipe's name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from xc_core.ann import IndexConfig
from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.errors import ConfigError, nearest
from xc_core.fusion import BY_WORDS, FusionConfig, LexicalConfig
from xc_core.losses import LossConfig
from xc_core.params import at_least, below, changed
from xc_core.plugins import Table
from xc_core.sampling import NegativesConfig, OrderConfig
from xc_core.train.optim import OptimConfig


@dataclass(frozen=True, kw_only=True)
class EncoderStage:
    """M1: how the encoder is trained."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    order: OrderConfig = field(default_factory=OrderConfig)
    negatives: NegativesConfig = field(default_factory=NegativesConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    text_share: float = 1.0
    """Share of the loss on label texts (lambda of UniDEC); the rest is on rows of a table trained along."""
    table: TableConfig = field(default_factory=TableConfig)
    """The table trained along, where text_share is below 1; the stage classifier starts from its rows."""
    table_loss: LossConfig = field(default_factory=LossConfig)
    """The loss on the table's rows."""
    augment: bool = False
    """Train on every label's text too, as a document of that label (ASTRA, Renee)."""
    cache: bool = False
    """Encode the labels of a pool twice instead of keeping their activations: memory of one pass (GradCache)."""
    epochs: float = 5.0
    """Passes over the train documents; 0 leaves the encoder as it came."""
    radius: float = 0.8
    """Hardness radius r of the Theorem 1 figures, a distance between unit vectors (0.8 is a cosine of 0.68)."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        at_least(self, epochs=0, radius=0, text_share=0)
        below(self, text_share=1 + 1e-9)
        if self.text_share == 1 and self.negatives.search_in == "rows":
            raise ConfigError(
                "a search in rows without a table", expected="text_share below 1", do="search_in: texts, or train rows"
            )
        if not self.text_share and self.negatives.searches and self.negatives.search_in == "texts" and not self.augment:
            raise ConfigError(
                "a search in label texts that nothing encodes",
                expected="label texts as documents",
                do="set augment to true, or search_in to rows",
            )

    @property
    def joint(self) -> bool:
        """True where a table is trained with the encoder."""
        return self.epochs > 0 and self.text_share < 1


@dataclass(frozen=True, kw_only=True)
class EmbeddingsStage:
    """Vectors of all documents and labels; everything it needs is in the encoder."""


@dataclass(frozen=True, kw_only=True)
class ClustersStage:
    """Clusters of the train documents' vectors, the order of M4."""

    size: int = 8
    """Documents of a cluster."""
    radius: float = 0.8
    """Hardness radius r of the Theorem 1 figures."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        at_least(self, size=1, radius=0)


@dataclass(frozen=True, kw_only=True)
class NegativesStage:
    """M2: hard negatives from an index on the label texts' vectors."""

    use: str = "audit"
    """"audit": measure on a sample how many of them the batches hold (NGAME needs no more); "train": mine all."""
    k: int = 20
    """Hard negatives of a document."""
    sample: int = 2000
    """audit: documents measured."""
    index: IndexConfig = field(default_factory=IndexConfig)
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        if self.use not in ("audit", "train"):
            raise ConfigError(f"use {self.use!r}", expected="audit or train", do="mend the value")
        at_least(self, k=1, sample=1)


@dataclass(frozen=True, kw_only=True)
class ClassifierStage:
    """M3 and M4: how the label table is trained."""

    order: OrderConfig = field(default_factory=lambda: OrderConfig(batch_size=512, cluster_size=8))
    negatives: NegativesConfig = field(default_factory=lambda: NegativesConfig(positives=0, unseen=128))
    loss: LossConfig = field(default_factory=lambda: LossConfig(margin=0.2, negatives=5, positives=3))
    table: TableConfig = field(default_factory=TableConfig)
    epochs: float = 15.0
    """Passes over the train documents; 0 leaves the rows at the label texts' vectors."""
    warmup: float = 0.03
    """Share of the training that warms up."""
    dropout: float = 0.0
    """Share of a document vector's coordinates zeroed in a step."""
    augment: bool = False
    """Train on every label's text vector too, as a document of that label; for an order that is not clustered."""
    lexical: LexicalConfig = field(default_factory=LexicalConfig)
    """The lexical score beside the table, fitted on the same documents' texts."""
    refit: bool = False
    """Train on validation documents too, for what is served and judged on test; and before that twice on one half of
    them, so that the fusion is fitted on documents whose scores come from rows that have not seen them (cross-fitting).
    Votes, words and frequencies go with it."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        at_least(self, epochs=0, warmup=0, dropout=0)
        below(self, warmup=1, dropout=1)
        if self.augment and self.order.kind == "clustered":
            raise ConfigError(
                "augment with clustered batches", expected="an order of all documents", do="set order.kind to random"
            )


@dataclass(frozen=True, kw_only=True)
class IndexStage:
    """Indexes over the classifier rows and over the label texts' vectors."""

    rows: IndexConfig = field(default_factory=IndexConfig)
    """Over the classifier rows."""
    joined: bool = False
    """Search rows and label texts as one: the product with their sum is the sum of both scores, which is what a search
    over concatenated vectors finds (UniDEC, section 3.4)."""
    texts: bool = True
    """Search the label texts too, so that a label no row finds can still be a candidate."""
    queries: int = 1000
    """Validation documents on which recall against exact search is measured."""

    def __post_init__(self) -> None:
        at_least(self, queries=1)


@dataclass(frozen=True, kw_only=True)
class EvaluationStage:
    """How the model is judged on test rows."""

    latency_queries: int = 200
    """Single texts timed from string to labels."""
    examples: int = 5
    """Test texts shown with predicted and true labels."""
    seed: int = 0
    """Root seed of intervals and examples."""

    def __post_init__(self) -> None:
        at_least(self, latency_queries=0, examples=0)


@dataclass(frozen=True, kw_only=True)
class ModelStage:
    """What a model must reach to be released."""

    min_P_at_1: float = 0.0
    """Percent on test rows; below it the chain stops before the registry."""
    min_index_recall: float = 0.9
    """Share of exact search's labels the index must find."""
    max_drop: float = 1.0
    """Points of P@5 a challenger may be below the champion and still replace it."""

    def __post_init__(self) -> None:
        at_least(self, max_drop=0)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A method: one config a stage. Frozen; a variant is a recipe with changes."""

    name: str
    paper: str
    """Where the method is from, in one line."""
    module: str
    """The module that defines it (``__name__``): a change of that file makes its experiments stale."""
    encoder: EncoderStage = field(default_factory=EncoderStage)
    embeddings: EmbeddingsStage = field(default_factory=EmbeddingsStage)
    clusters: ClustersStage = field(default_factory=ClustersStage)
    negatives: NegativesStage = field(default_factory=NegativesStage)
    classifier: ClassifierStage = field(default_factory=ClassifierStage)
    index: IndexStage = field(default_factory=IndexStage)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    evaluation: EvaluationStage = field(default_factory=EvaluationStage)
    model: ModelStage = field(default_factory=ModelStage)

    def __post_init__(self) -> None:
        if (wordy := BY_WORDS & {*self.fusion.needed}) and not self.classifier.lexical.use:
            named = " and ".join(sorted(wordy))
            raise ConfigError(
                f"the feature {named} in fusion and classifier.lexical.use = False",
                expected="a lexical score that the stage classifier trains",
                do=f"set classifier.lexical.use = true, or leave {named} out of fusion.features and fusion.add",
            )

    def variant(self, name: str, paper: str, module: str, changes: dict[str, Any]) -> Recipe:
        """Return the recipe with ``changes`` under another name, as a method of its own that ``module`` defines."""
        return dataclasses.replace(self.changed(changes), name=name, paper=paper, module=module)

    def changed(self, changes: dict[str, Any]) -> Recipe:
        """Return the recipe with ``changes``, a mapping stage -> field -> value.

        Raises ConfigError for an unknown stage, field or value.
        """
        for name in changes if isinstance(changes, dict) else ():
            if name not in self.stages():
                raise ConfigError(
                    f"{self.name}.{name}{nearest(name, self.stages())}",
                    expected=f"a stage with settings: {', '.join(self.stages())}",
                    do="mend the name",
                )
        return changed(self, changes, self.name)

    @classmethod
    def stages(cls) -> tuple[str, ...]:
        """Return the names of the stages a recipe configures."""
        return tuple(f.name for f in dataclasses.fields(cls) if f.name not in ("name", "paper", "module"))


RECIPES: Table[Recipe] = Table("recipe")


def find_recipe(name: str) -> Recipe:
    """Return the recipe ``name``; raise ConfigError naming the nearest where there is none."""
    try:
        return RECIPES[name]
    except ConfigError as error:
        do = f"{error.do}; a variant of a known one under a name of its own needs --base KNOWN"
        raise ConfigError(error.found, expected=error.expected, do=do) from error
