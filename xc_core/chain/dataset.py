"""Settings of the stages that run once per dataset. Cheap to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError
from xc_core.params import at_least


class Partition(Protocol):
    """A dataset, or a dataset with a recipe (an experiment)."""

    @property
    def place(self) -> tuple[str, str | None]:
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
class TokensConfig:
    """How a dataset is tokenised."""

    tokenizers: tuple[str, ...] = ("minilm",)
    """Encoders whose tokenizers are needed; one store each."""
    max_tokens: int = 510
    """Token ids of a text that are kept, special tokens not counted; a recipe may read fewer."""
    vocabulary: int = 30_000
    """Size of a vocabulary made from the corpus (encoder bag)."""

    def __post_init__(self) -> None:
        at_least(self, max_tokens=1, vocabulary=1)


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """What may happen to a dataset when its files change. No artefact depends on it."""

    allow_loss: float = 0.1
    """Share of the documents, or of the labels, that new files may lack before they are refused. A guess."""
    keep: int = 3
    """Earlier versions of the raw files that are kept in .xc/versions. A guess."""

    def __post_init__(self) -> None:
        at_least(self, keep=1)
        if not 0 <= self.allow_loss <= 1:
            raise ConfigError(f"allow_loss {self.allow_loss}", expected="0 <= share <= 1", do="fix the value")


@dataclass(frozen=True)
class Dataset:
    """A dataset of params.yaml and the settings of its stages."""

    name: str
    corpus: IngestConfig = field(default_factory=IngestConfig)
    tokens: TokensConfig = field(default_factory=TokensConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)

    @property
    def place(self) -> tuple[str, str | None]:
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
