"""Settings of every stage of an experiment. To add a stage, add its settings here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from xc_core.ann import Auto, IndexPart
from xc_core.fusion import Fusion, Inputs, Tree
from xc_core.params import at_least, later, within
from xc_core.plugins import HasUnused
from xc_core.scores import Classifier, Frequency, LabelText, Score
from xc_core.train.classifier import ClassifierSettings
from xc_core.train.encoder_settings import EncoderSettings


@dataclass(frozen=True, kw_only=True)
class EmbeddingsSettings:
    """Vectors of all documents and labels; everything it needs is in the encoder."""


@dataclass(frozen=True, kw_only=True)
class ClustersSettings:
    """Clusters of the documents' vectors, for an M4 that trains on whole clusters."""

    size: int = 8
    """Documents per cluster."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        at_least(self, size=1)


@dataclass(frozen=True, kw_only=True)
class NegativesSettings(HasUnused):
    """M2: hard negatives from an index on the label texts' vectors, for an M4 that trains on stored ones."""

    k: int = 0
    """Hard negatives per document; 0 for an M4 that finds its own."""
    index: IndexPart = field(default_factory=Auto)

    def __post_init__(self) -> None:
        at_least(self, k=0)

    def unused(self) -> frozenset[str]:
        """Nothing is searched if nothing is mined."""
        return frozenset() if self.k else frozenset({"index"})


@dataclass(frozen=True, kw_only=True)
class FusionSettings(HasUnused):
    """How the values of scores become one."""

    rule: Fusion = field(default_factory=Tree)
    rows: int = 10_000
    """Validation documents that the rule is fitted on, at most; drawn by a hash of the uid."""
    candidates: int = 100
    """Labels asked of each score that can find labels."""
    fallback: bool = later(True, was=False)
    """Use a score alone, or the plain sum, if it is better than the rule on documents that the rule has not seen: in
    one of P@1, P@5 and PSP@5, and worse in none; or clearly (95 %) in P@1 or P@5, and clearly worse in none. Use the
    sum if no other document can test the rule."""
    new_by_sum: bool = later(False, was=False, code_version="2")
    """Give a label without train documents at least the fused score that others have on average at its plain sum.

    It needs a score that counts documents (``frequency``) and a rule with trees. It is left out if P@1, P@5 or PSP@5 of
    documents that the rule has not seen are clearly (95 %) worse, and by more than ``tail_cost`` points."""
    tail_cost: float = later(0.0, was=0.0)
    """Points on validation documents that rare labels may cost: the default position of the dial between P@k and PSP@k
    in P@1, and ``new_by_sum`` in P@1, P@5 or PSP@5.

    The dial may cost twice as much by its 95 % interval, so few documents keep the dial near 0."""

    def __post_init__(self) -> None:
        at_least(self, rows=1, candidates=1)
        within(self, tail_cost=(0, 100))

    def unused(self) -> frozenset[str]:
        """A rule without parameters is never replaced."""
        return frozenset() if self.rule.learns else frozenset({"fallback", "new_by_sum"})


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How the model is evaluated on test documents."""

    latency_queries: int = 200
    """Single texts that are timed from string to labels."""
    examples: int = 12
    """Test texts shown with predicted and true labels: half of them with a true first label, half without."""
    seed: int = 0
    """Root seed of intervals and examples."""

    def __post_init__(self) -> None:
        at_least(self, latency_queries=0, examples=0)


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Measurements of the batches that M4 trained on; nothing depends on them."""

    sample: int = 2000
    """Train documents whose hard negatives are looked for in the batches."""
    k: int = 20
    """Hard negatives per document."""
    radius: float = 0.8
    """Hardness radius r of the figures of Theorem 1, a distance between unit vectors (0.8 is a cosine of 0.68)."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        at_least(self, sample=1, k=1)
        within(self, radius=(0, 2))


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What a model must reach to be packed and released."""

    min_P_at_1: float = 0.0
    """Percent on test documents; below it no model is packed."""
    min_index_recall: float = 0.9
    """Share of exact search's labels that each index must find."""
    max_drop: float = 1.0
    """Points of P@5 that a challenger may be below the champion and still replace it."""

    def __post_init__(self) -> None:
        within(self, min_P_at_1=(0, 100), min_index_recall=(0, 1), max_drop=(0, 100))


def named(*scores: Score) -> Mapping[str, Score]:
    """Return scores under their kinds, in order."""
    return {score.kind: score for score in scores}


def inputs_of(scores: Mapping[str, Score]) -> Inputs:
    """Return the scores as the fusion sees them."""

    def where(is_so: Callable[[Score], bool]) -> tuple[str, ...]:
        return tuple(name for name, score in scores.items() if is_so(score))

    return Inputs(
        tuple(scores),
        summed=where(lambda score: score.summed),
        offsets=where(lambda score: score.offset),
        probabilities=where(lambda score: score.probability),
        counts=next(iter(where(lambda score: score.counts)), ""),
    )


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """Settings of each stage, under the name of the stage, in the order of the pipeline."""

    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    embeddings: EmbeddingsSettings = field(default_factory=EmbeddingsSettings)
    clusters: ClustersSettings = field(default_factory=ClustersSettings)
    negatives: NegativesSettings = field(default_factory=NegativesSettings)
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)
    scores: Mapping[str, Score] = field(default_factory=lambda: named(LabelText(), Classifier(), Frequency()))
    """The scores that are fused, by name."""
    fusion: FusionSettings = field(default_factory=FusionSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
