"""Settings of the stage tokens, apart from its code so that reading parameters stays light.

Takes: nothing.      Gives: TokensConfig.
May import: errors.  Never: a tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from xc_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TokensConfig:
    """How a dataset is tokenised."""

    tokenizers: tuple[str, ...] = ("minilm",)
    """Encoders whose tokenizers are needed; one store each."""
    fields: tuple[str, ...] = ("title", "content")
    """Columns joined by a space into the text."""
    max_tokens: int = 510
    """Token ids of a text that are kept, special tokens not counted; a recipe may read fewer."""
    vocabulary: int = 30_000
    """Size of a vocabulary made from the corpus (encoder bag)."""

    def __post_init__(self) -> None:
        if not set(self.fields) <= {"title", "content"} or not self.fields or self.max_tokens < 1:
            raise ConfigError(
                f"fields {self.fields}, max_tokens {self.max_tokens}",
                expected="fields of title and content, max_tokens >= 1",
                do="mend the value",
            )
