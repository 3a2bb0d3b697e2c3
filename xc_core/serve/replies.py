"""The shape of an answer, for the OpenAPI document, and the JSON of one."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic import BaseModel, Field

from xc_core.infer.explained import Explained
from xc_core.serve.models import Served


class Why(BaseModel):
    """What one score says of a label."""

    score: str = Field(description="Name of the score.")
    value: float = Field(description="Its value.")
    rank: int = Field(description="Place of the label among the text's candidates by this score; 1 is the best.")
    adds: float | None = Field(description="Points that it adds to the fused score; null if it is not added itself.")


class Label(BaseModel):
    """A label of a text. `score` is the sum of all `adds`, `trees`, `by_sum` and `dial`."""

    uid: str
    title: str
    score: float = Field(description="Fused score; only the order within a text has a meaning.")
    probability: float | None = Field(
        description="Probability that the label is right; it can be compared between texts. Null without a dial."
    )
    why: list[Why] | None = Field(None, description="The scores behind the label, unless `why` is false.")
    trees: float | None = Field(None, description="Points of the fusion's trees, which read several scores at once.")
    dial: float | None = Field(None, description="Points that the dial adds for a rare label.")
    by_sum: float | None = Field(
        None,
        description="Points that raise a label without train documents to what others have at the plain sum of its "
        "scores. The field is there only if there are such points.",
    )


class ModelName(BaseModel):
    """The model that answered, one for the whole request."""

    dataset: str
    version: str = Field(description="Version in the registry, or the digest's first digits for a folder.")
    recipe: str
    digest: str = Field(description="SHA-256 of the model's content.")


class Reply(BaseModel):
    """The labels of each text, in the order of the texts, best first."""

    model: ModelName
    tail: float = Field(description="Position of the dial.")
    answers: list[list[Label]]
    cut: list[int] | None = Field(
        None,
        description="Places in `answers`, from 0, of texts for which more than `k` labels reach `min_probability`: ask "
        "with a larger `k`. The field is there only if there is such a text.",
    )


class Problem(BaseModel):
    """An error."""

    found: str
    expected: str
    do: str


def reply(served: Served, tail: float | None, answers: Iterable[list[Explained]], cut: list[int], why: bool) -> bytes:
    """Return the JSON of a ``Reply``."""
    dial = served.predictor.ranker.fusion.dial
    position = tail if tail is not None else 0.0 if dial is None else dial.default
    labels = [[_label(label, why) for label in explained] for explained in answers]
    content: dict[str, object] = {"model": served.name, "tail": position, "answers": labels}
    content |= {"cut": cut} if cut else {}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _label(label: Explained, why: bool) -> dict[str, object]:
    content: dict[str, object] = {name: getattr(label, name) for name in ("uid", "title", "score", "probability")}
    if not why:
        return content
    reasons = [vars(reason) for reason in label.reasons]
    content |= {"why": reasons, "trees": label.trees, "dial": label.dial}
    return content | ({"by_sum": label.by_sum} if label.by_sum else {})
