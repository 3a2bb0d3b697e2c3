"""The best champions so far. A new model is compared with them too, so that small losses do not add up.

A champion carries the tag ``gate_best``, written when the gate let it pass: the best champion up to it, itself
included, for each metric. Going back to a version goes back to its tag; a version without one starts again from itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from xc_core.infer.acceptance import Measured

BEST: Final = "gate_best"
"""Tag of a version."""


@dataclass(frozen=True)
class Best:
    """The digest of the best model for each metric, on one version of the acceptance set."""

    acceptance: int
    models: Mapping[str, str]

    @classmethod
    def of(cls, champion: Any | None, acceptance: int) -> Self:
        """Return what the tag of a champion says; nothing if it has none, or if the acceptance set has changed."""
        measured_on, models = (None, {}) if champion is None else _read_tag(champion)
        return cls(acceptance, models if measured_on == acceptance else {})

    @classmethod
    def among(cls, acceptance: int, models: Mapping[str, Measured], metrics: Iterable[str]) -> Self:
        """Return the best of some measured models, by their digests; of equal ones the first."""
        totals = {digest: model.figures.total() for digest, model in models.items()}
        return cls(acceptance, {name: max(totals, key=lambda digest: totals[digest][name]) for name in metrics})

    def text(self) -> str:
        """Return the value of the tag."""
        return json.dumps({"acceptance": self.acceptance, "models": dict(self.models)})


def best_digests(version: Any) -> set[str]:
    """Return the digests of the models that the tag of a version names."""
    return set(_read_tag(version)[1].values())


def _read_tag(version: Any) -> tuple[int | None, dict[str, str]]:
    """Return the version of the acceptance set and the models in a version's tag; none if it cannot be read."""
    try:
        content = json.loads(version.tags.get(BEST, ""))
        return content["acceptance"], {str(name): str(digest) for name, digest in content["models"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None, {}


def start_again(client: Any, name: str, version: int) -> None:
    """Forget the best champions before a version: a person who overrules the gate accepts its level."""
    if BEST in client.get_model_version(name, str(version)).tags:
        client.delete_model_version_tag(name, str(version), BEST)
