"""Settings of the stages that run once per dataset. Cheap to import."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError, nearest
from xc_core.params import at_least, at_most, one_of, within
from xc_core.plugins import HasOutside
from xc_core.pretrained import BAG, FROM_CORPUS, tokenizer_files

POLICIES: Final = ("auto", "manual")
_CRON_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
"""Least and greatest number of each field of a cron line."""
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days of each month, at most."""
_CRON_PART: Final = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?", re.ASCII)
"""A field of a cron line without commas: the first and last number, and the step."""


class Partition(Protocol):
    """A dataset, or a dataset with a recipe (an experiment)."""

    @property
    def key(self) -> tuple[str, str | None]:
        """(dataset, recipe); the recipe is None for a dataset."""

    @property
    def dataset(self) -> Dataset:
        """The dataset."""

    @property
    def tokenizer(self) -> str | None:
        """The tokenizer whose ids the recipe's encoder reads; None for a dataset."""

    def settings(self, stage: str) -> Any:
        """Return the settings of ``stage``; None for one that has none (leaderboard)."""


@dataclass(frozen=True, kw_only=True)
class TokensConfig(HasOutside):
    """How a dataset is tokenised."""

    tokenizers: tuple[str, ...] = ("minilm",)
    """Tokenizers to make token ids with, one store each: "wordpiece" (made from the corpus, for the encoder bag),
    "minilm", a folder, or a name on the Hugging Face hub."""
    max_tokens: int = 510
    """Token ids of a text that are kept, special tokens not counted; a recipe may read fewer."""
    vocabulary: int = 30_000
    """Size of a vocabulary made from the corpus (encoder bag)."""

    def __post_init__(self) -> None:
        at_least(self, max_tokens=1, vocabulary=1)
        at_most(self, max_tokens=1 << 20, vocabulary=10_000_000)
        if BAG in self.tokenizers:
            raise ConfigError(
                "bag among the tokenizers, the name of an encoder",
                expected=f"names of tokenizers; that of the encoder bag is {FROM_CORPUS}, made from the corpus",
                do=f"write {FROM_CORPUS} instead of bag",
            )

    def outside(self) -> dict[str, list[Path]]:
        """Return the files of local tokenizers."""
        return {part: files for name in self.tokenizers for part, files in tokenizer_files(name).items()}


@dataclass(frozen=True, kw_only=True)
class ReleaseConfig:
    """Which models of a dataset may be released, and what the gate allows. The limits are guesses, not studied.

    The limit of P@5 and PSP@5 is a setting of the recipe: ``model.max_drop``.
    """

    recipes: tuple[str, ...] = ()
    """Recipes whose models Dagster registers; empty: all of the dataset. `xc promote --recipe` registers any."""
    policy: str = "auto"
    """What happens to a model that passes the gate: "auto": it becomes champion; "manual": it becomes challenger, and
    `xc promote` makes it champion."""
    max_bin_drop: float = 2.0
    """Points of recall@5 that labels of the head, torso or tail may lose. Fewer documents have them, so a larger loss
    counts only if its paired interval excludes 0 and at least 6 documents differ."""
    max_slower: float = 2.0
    """Latency of a single text, as a multiple of the champion's."""
    max_larger: float = 2.0
    """Size of the packed model, as a multiple of the champion's."""

    def __post_init__(self) -> None:
        one_of(self, policy=POLICIES)
        at_least(self, max_slower=1, max_larger=1)
        within(self, max_bin_drop=(0, 100))

    def competes(self, recipe: str) -> bool:
        """Return True if models of ``recipe`` may be released."""
        return not self.recipes or recipe in self.recipes

    def check(self, dataset: str, recipes: Collection[str]) -> None:
        """Raise ConfigError for a competing recipe that is none of the dataset's ``recipes``."""
        for name in self.recipes:
            if name not in recipes:
                raise ConfigError(
                    f"datasets.{dataset}.release.recipes names {name!r}{nearest(name, recipes)}",
                    expected=f"recipes of the dataset: {', '.join(sorted(recipes)) or 'there are none yet'}",
                    do="fix the name, or train the recipe",
                )


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """What may happen to a dataset when its files change. No artefact depends on it."""

    allow_loss: float = 0.1
    """Share of documents, labels, pairs or test documents that new files may lack before they are refused. A guess."""
    keep: int = 3
    """Earlier versions of the raw files in .xc/versions, and files that came by the inbox in .xc/inbox. A guess."""

    def __post_init__(self) -> None:
        at_least(self, keep=1)
        within(self, allow_loss=(0, 1))


@dataclass(frozen=True, kw_only=True)
class DriftConfig:
    """From when on new data ask for a refresh or a retraining (``lifecycle.drift``). No artefact depends on it.

    All values are guesses, not studied.
    """

    unknown_labels: float = 0.0
    """Share of the labels that the model does not know; if more are unknown, a refresh adds them."""
    untrained_labels: float = 0.1
    """Share of the labels without a trained row; if more have none, the model is trained again."""
    query_auc: float = 0.75
    """How well a linear classifier tells new documents' vectors from those that the encoder was trained on: the area
    under its ROC curve, 0.5 if they do not differ; above, the model is trained again."""
    recall_drop: float = 5.0
    """Points of recall@10 that new documents may be below test documents; more ask for a refresh, or, if the model was
    refreshed since its training, for a retraining."""
    fewest: int = 50
    """New documents without which neither is measured."""
    sample: int = 500
    """Documents of each side that are encoded, at most."""

    def __post_init__(self) -> None:
        at_least(self, unknown_labels=0, untrained_labels=0, query_auc=0.5, recall_drop=0, fewest=4, sample=4)
        at_most(self, unknown_labels=1, untrained_labels=1, query_auc=1, recall_drop=100, sample=100_000)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """When Dagster's schedules of a dataset start a run, once they are switched on. No artefact depends on it.

    Each is a cron line in UTC: minute, hour, day of the month, month, day of the week.
    """

    retrain: str = "0 2 * * 0"
    """Retraining of every recipe: Sundays at 02:00."""
    refresh: str = "30 3 * * *"
    """New data without training: every night at 03:30."""
    drift: str = "30 1 * * *"
    """A refresh or a retraining if the rule of ``xc drift`` asks for one: every night at 01:30."""

    def __post_init__(self) -> None:
        for name in ("retrain", "refresh", "drift"):
            if not _is_cron(getattr(self, name)):
                raise ConfigError(
                    f"{name} {getattr(self, name)!r}",
                    expected='five fields of numbers, *, lists, ranges and steps, such as "0 2 * * 0"',
                    do="fix the value",
                )


def _is_cron(line: str) -> bool:
    """Return True for a cron line of five fields without names that names a day which exists."""
    fields = line.split()
    if len(fields) != len(_CRON_RANGES):
        return False
    numbers = [_numbers(field, *limits) for field, limits in zip(fields, _CRON_RANGES, strict=True)]
    if not all(numbers):
        return False
    _, _, days, months, _ = numbers
    return any(day <= _MONTH_DAYS[month - 1] for day in days for month in months)


def _numbers(field: str, low: int, high: int) -> set[int]:
    """Return all numbers of a field; none if a part of it is wrong or not within the limits."""
    ranges = [_part_range(part, low, high) for part in field.split(",")]
    return set().union(*ranges) if all(ranges) else set()


def _part_range(part: str, low: int, high: int) -> range:
    match = _CRON_PART.fullmatch(part)
    if match is None:
        return range(0)
    first, last, step = (int(number) if number else None for number in match.groups())
    if first is None:
        first, last = low, high
    elif last is None:
        last = first if step is None else high
    assert last is not None
    return range(first, last + 1, step or 1) if low <= first <= last <= high and step != 0 else range(0)


@dataclass(frozen=True)
class Dataset:
    """A dataset of params.yaml and the settings of its stages."""

    name: str
    corpus: IngestConfig = field(default_factory=IngestConfig)
    tokens: TokensConfig = field(default_factory=TokensConfig)
    release: ReleaseConfig = field(default_factory=ReleaseConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    drift: DriftConfig = field(default_factory=DriftConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    @property
    def key(self) -> tuple[str, str | None]:
        """The name, and no recipe."""
        return self.name, None

    @property
    def dataset(self) -> Self:
        """The dataset itself."""
        return self

    @property
    def tokenizer(self) -> str | None:
        """There is no encoder."""
        return None

    def settings(self, stage: str) -> Any:
        """Return the settings of ``stage``; None for one that has none (leaderboard)."""
        return {"corpus": self.corpus, "tokens": self.tokens}.get(stage)
