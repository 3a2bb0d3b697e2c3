"""The artefact of the stage model: a packed model with all that a service needs. Reading it never runs stored code.

Files: ``encoder.json``, ``encoder.safetensors``, ``tokenizer.json``, ``labels.parquet`` (uid, title), ``scores/``,
``fusion.json``, ``log_weights.npy``, ``model.json`` (dataset, recipe, metrics, digest of the test documents).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import polars as pl

from xc_core import __version__, artifacts
from xc_core.artifacts import Build
from xc_core.devices import Device
from xc_core.encoders import TrainedEncoder, open_encoder, write_encoder
from xc_core.errors import ConfigError, CorruptError, RefusedError, bare, in_words
from xc_core.fusion import FittedFusion
from xc_core.infer.names import label_names
from xc_core.infer.predictor import Predictor
from xc_core.infer.ranker import Ranker
from xc_core.scores import Scores, open_packed

_CONTENT: Final = "model.json"
_LABELS: Final = "labels.parquet"
_SCORES: Final = "scores"


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a packed model that are stored with it."""

    dataset: str
    recipe: str
    metrics: dict[str, float]
    """Metrics on test documents, in percent."""
    test: str
    """Digest of the test documents that the metrics were measured on."""
    max_drop: float
    """Points of P@5 by which the model may be below the champion and still replace it."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the facts of the model at ``folder``, which is not verified."""
        content: dict[str, Any] = json.loads((folder / _CONTENT).read_text("utf-8"))
        return cls(**{fact.name: content[fact.name] for fact in fields(cls)})


@dataclass(frozen=True)
class Model:
    """A packed model."""

    kind: ClassVar[str] = "model"
    folder: Path
    facts: ModelFacts
    digest: str
    """Digest of the content."""

    @classmethod
    def open(cls, folder: Path, dataset: str = "") -> Model:
        """Open and verify the model at ``folder``.

        Raises MissingError, CorruptError, RefusedError for a model of another dataset than ``dataset``, if it is given,
        and for one that another release packed in a way that this one cannot read.
        """
        digest = artifacts.verify(folder, kind=cls.kind).digest()
        with _refuse_unknown_settings(folder):
            facts = ModelFacts.read(folder)
        if dataset and facts.dataset != dataset:
            raise RefusedError(
                f"a model of the dataset {bare(facts.dataset)}, {folder}",
                expected=f"a model of {dataset}, whose labels it knows",
                do=f"promote a model of {dataset}; if the dataset was renamed, pack its model again: "
                f"xc run model --force --dataset {dataset} --recipe NAME",
            )
        return cls(folder, facts, digest)

    def predictor(self) -> Predictor:
        """Return the predictor for texts.

        Raises CorruptError if the parts have different numbers of labels, or other scores than the fusion, RefusedError
        if this release cannot read them.
        """
        with _refuse_unknown_settings(self.folder):
            uids, titles = label_names(self.folder / _LABELS)
            encoder, tokenizer = open_encoder(self.folder, to_answer=True)
            fusion, scores = FittedFusion.read(self.folder), open_packed(self.folder / _SCORES)
        encoder.on(Device.chosen())
        ranker = Ranker(scores, fusion)
        dial_labels = len(uids) if fusion.dial is None else len(fusion.dial.log_weight_L)
        if not ranker.num_labels == len(uids) == dial_labels or fusion.names != tuple(scores):
            raise CorruptError(
                f"{len(uids)} names, scores of {ranker.num_labels} labels, a fusion of {', '.join(fusion.names)}",
                expected=f"the same number of labels everywhere, and a fusion of {', '.join(scores)}",
                do="pack the model again: xc run model --force, with its --dataset and --recipe",
            )
        return Predictor(tokenizer, encoder, ranker, uids, titles)


@contextmanager
def _refuse_unknown_settings(folder: Path) -> Iterator[None]:
    """Raise RefusedError for settings of a model that this release does not know, or that it misses.

    The files are those that were packed, as their hashes say: to repair them would change nothing.
    """
    try:
        yield
    except (ConfigError, CorruptError, LookupError, TypeError) as error:
        if isinstance(error, CorruptError) and not isinstance(error.__cause__, LookupError | TypeError):
            raise
        raise RefusedError(
            f"a packed model that xc {__version__} cannot read ({in_words(error)}), {folder}",
            expected="a model that this release, or an earlier one, has packed, and the plug-ins that it was made with",
            do="use the release that has packed it (xc lineage names that of a version), or train and promote again",
        ) from error


def open_predictor(folder: Path, dataset: str = "") -> Predictor:
    """Open the packed model at ``folder`` after checking every hash. If it is replaced meanwhile, it is read again.

    Raises MissingError, CorruptError, RefusedError as ``Model`` does.
    """
    return artifacts.steady(folder, lambda: Model.open(folder, dataset).predictor())


@dataclass(frozen=True)
class Parts:
    """The parts that a model is packed from."""

    encoder: TrainedEncoder
    scores: Scores
    fusion: FittedFusion
    labels: pl.DataFrame
    """uid and title of each label, in the order of label ids."""


def write_model(build: Build, parts: Parts, facts: ModelFacts) -> None:
    """Write ``parts`` into the artefact that is being built."""
    write_encoder(build.path, parts.encoder.encoder, parts.encoder.tokenizer)
    parts.labels.select("uid", "title").write_parquet(build.path / _LABELS)
    parts.scores.pack(build.path / _SCORES)
    parts.fusion.write(build.path)
    build.json(_CONTENT, asdict(facts))
    build.facts |= {**asdict(facts), "labels": len(parts.labels)}
