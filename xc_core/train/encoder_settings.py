"""The settings of M1: an encoder, the four parts of its training, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from xc_core.encoders import EncoderConfig
from xc_core.errors import ConfigError
from xc_core.losses import Loss, Triplet
from xc_core.params import MAX_EPOCHS, later, within
from xc_core.plugins import HasOutside, HasUnused
from xc_core.sampling import ROWS, TEXTS, Clustered, InBatch, Negatives, Order
from xc_core.train.heads import ByText, Scorer
from xc_core.train.optim import OptimConfig


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(HasUnused, HasOutside):
    """M1: how the encoder is trained."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    order: Order = field(default_factory=Clustered)
    negatives: Negatives = field(default_factory=InBatch)
    scorer: Scorer = field(default_factory=ByText)
    """Source of a label's vector: its text, a row of a table that is trained along, or both."""
    loss: Loss = field(default_factory=Triplet)
    """The loss on label texts, or on rows if only rows are scored."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    augment: bool = False
    """Train on every label's text too, as a document of that label (ASTRA, Renee)."""
    refit: bool = later(False, was=False)
    """Train on validation documents too, and with them the classifier and the scores, in one training. Nothing is held
    out then: no figures on validation documents, and no fusion that is fitted on them."""
    cache: bool = later(False, was=False)
    """Encode the documents of a batch twice instead of keeping their activations (GradCache), so that a batch may be
    larger than memory; ``scorer.cache`` does so for label texts. Losses are the same up to rounding."""
    epochs: float = 5.0
    """Passes over the train documents; 0 leaves the encoder as it was pretrained."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        within(self, epochs=(0, MAX_EPOCHS))
        if self.encoder.heads == 2 and self.epochs and not (self.scorer.reads_texts and self.scorer.trains_rows):
            do = "set scorer to text-and-row, or heads to 1"
            raise ConfigError(f"heads 2 with the scorer {self.scorer.kind!r}", expected="a scorer of both", do=do)
        searched = self.negatives.searches
        if searched == ROWS and not self.scorer.trains_rows:
            raise ConfigError(
                "a search in rows without a table", expected="a scorer with rows", do="set negatives.search_in to texts"
            )
        if searched == TEXTS and not (self.scorer.reads_texts or self.augment):
            raise ConfigError(
                "a search in label texts that nothing encodes",
                expected="label texts as documents",
                do="set augment to true, or negatives.search_in to rows",
            )
        for name, chosen in (("order", self.order), ("negatives", self.negatives)):
            if chosen.stored:
                raise ConfigError(
                    f"the {name} {chosen.kind!r} for M1, which trains before they are computed",
                    expected=f"{name} that the training computes itself",
                    do=f"choose another kind of {name}",
                )

    def sparing(self) -> EncoderSettings:
        """Return the same training with less memory: documents and label texts are encoded twice."""
        return replace(self, cache=True, scorer=self.scorer.sparing())

    @property
    def joint(self) -> bool:
        """True if a table is trained along with the encoder."""
        return self.epochs > 0 and self.scorer.trains_rows

    @property
    def sees_validation(self) -> bool:
        """True if validation documents are trained on."""
        return self.epochs > 0 and self.refit

    @property
    def fills_banks(self) -> bool:
        """True if everything is encoded before the first step, for parts that refresh before epoch 0."""
        return self.order.due(0) or self.negatives.due(0)

    @property
    def repeats(self) -> bool:
        """True if texts are encoded at least twice in a training, before its first step included."""
        return self.fills_banks or self.epochs >= 2

    @property
    def keeps(self) -> tuple[bool, bool]:
        """True if the training keeps the latest vectors of documents, and of label texts; Theorem 1 compares both.

        Label texts that are encoded only as documents have their vectors among those of the documents.
        """
        adapts, apart = self.order.adapts, self.scorer.reads_texts
        return adapts or self.negatives.adapts, apart and (adapts or self.negatives.searches == TEXTS)

    def unused(self) -> frozenset[str]:
        """Without epochs, no setting of the training is used."""
        training = {"order", "negatives", "scorer", "loss", "optim", "augment", "refit", "cache"}
        training |= {"encoder.frozen_layers"}
        return frozenset() if self.epochs else frozenset(training)

    def outside(self) -> dict[str, list[Path]]:
        """Return the files of a local model folder."""
        return self.encoder.outside()
