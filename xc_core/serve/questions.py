"""The boundary of the server: a request's JSON becomes a Question, or an error of found, expected, do this."""

from __future__ import annotations

import json
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xc_core.errors import UsageError, nearest, preview, shown
from xc_core.fusion.dial import checked, checked_probability
from xc_core.infer.explained import NOTHING, Question
from xc_core.serve.limits import Limits
from xc_core.serve.models import Served
from xc_core.visible import INK, counted, listed

_LETTERS: Final = string.ascii_letters + string.digits + "-_.:/#"
"""Characters of uids, of which one may be wrong or missing."""
_EXAMPLE: Final = 'an object, for instance {"text": "a small dog", "k": 5}'
_EXPECTED: Final = {
    "int_type": "a whole number, without quotes",
    "float_type": "a number, without quotes",
    "bool_type": "true or false, without quotes",
    "string_type": "a text in quotes",
    "list_type": "a list of texts, also of a single one",
}
"""What pydantic expects, by its kinds of errors, in words for people."""
_MAX_SPELLED: Final = 100
"""Characters of a uid whose spellings are tried: some ten thousand, which take milliseconds."""


class PredictRequest(BaseModel):
    """A question about one text (`text`) or several (`texts`)."""

    # unknown parameters are found by ``parsed``, wrong items of a list one by one: pydantic would describe each of them
    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra={"additionalProperties": False})

    text: str | None = Field(None, description="One text.", examples=["a small dog with long hair"])
    texts: Annotated[list[str], Field(fail_fast=True)] | None = Field(
        None, description="Several texts, instead of `text`."
    )
    k: int = Field(5, description="Labels per text. By default fewer if the model, or the server's limit, has fewer.")
    tail: float | None = Field(
        None,
        description="Position of the dial, from 0, the likeliest labels (best P@k), to 1, rare labels higher "
        "(best PSP@k). By default the model's own.",
    )
    min_probability: float = Field(
        0.0, description="Leave out labels that are less likely to be right, from 0 to 1; a text may have none left."
    )
    exclude: Annotated[list[str], Field(fail_fast=True)] = Field(
        [], description="Uids of labels to leave out, also of those in `only`; at least one label has to be left."
    )
    only: Annotated[list[str], Field(fail_fast=True)] | None = Field(
        None, description="Uids of the labels to rank; all other labels are left out."
    )
    why: bool = Field(True, description="Whether to return the scores behind each label.")


class TooLargeError(UsageError):
    """A request above a limit of its size."""


def parsed(body: bytes) -> PredictRequest:
    """Return the question in the JSON of ``body``; raise UsageError with the first thing that is wrong."""
    if not body.strip():
        raise UsageError("an empty body", expected=_EXAMPLE, do="send the question as the body of the request")
    try:
        request = PredictRequest.model_validate_json(body)
    except ValidationError as error:
        raise _validation_error(dict(error.errors(include_url=False)[0])) from error
    if repeated := _repeated(body):
        raise UsageError(f"the parameter {preview(repeated)} twice", expected="each once", do="send one of them")
    for name in request.model_extra or {}:
        parameters = list(PredictRequest.model_fields)
        raise UsageError(
            f"unknown parameter {preview(name)}{nearest(name, parameters)}",
            expected=f"some of {', '.join(parameters)}",
            do="fix the name, or leave it out",
        )
    return request


def _repeated(body: bytes) -> str | None:
    """Return a name that the object in ``body`` has twice: pydantic takes its last value without a word."""
    twice: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        names = Counter(name for name, _ in pairs)
        twice.extend(name for name in names if names[name] > 1)

    json.loads(body, object_pairs_hook=note)
    return twice[-1] if twice else None


def _validation_error(detail: dict[str, Any]) -> UsageError:
    location = "".join(f"[{part}]" if isinstance(part, int) else str(part) for part in detail["loc"])
    if detail["type"] == "json_invalid":
        return UsageError(
            f"a body that is no JSON ({detail['msg'].removeprefix('Invalid JSON: ')})",
            expected=_EXAMPLE,
            do="fix the JSON; it has to be UTF-8",
        )
    return UsageError(
        f"{_kind(detail['input'])} as {location or 'the question'}",
        expected=_EXPECTED.get(detail["type"], detail["msg"].removeprefix("Input should be ")),
        do=f"fix {location}" if location else 'send {"text": "..."}, or for several texts {"texts": ["...", "..."]}',
    )


def _kind(value: object) -> str:
    """Return a value as JSON has it, which a client in another language than Python knows."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return preview(value) if isinstance(value, str) else shown(value, 60)


def question(request: PredictRequest, served: Served, limits: Limits) -> Question:
    """Return the question for ``served``. Raises UsageError if it cannot be answered, TooLargeError above a limit."""
    asked = Question(
        tuple(_texts(request, limits)),
        _k(request, served, limits),
        _tail(request.tail, served),
        _min_probability(request.min_probability, served),
        _labels("exclude", request.exclude, served, limits) or NOTHING,
        None if request.only is None else _only(request.only, served, limits),
    )
    if len(asked.exclude) == len(served.ids) or (asked.only is not None and asked.only <= asked.exclude):
        raise _nothing_left(request.only, served)
    return asked


def _nothing_left(only: list[str] | None, served: Served) -> UsageError:
    found = f"all {len(served.ids):,} labels in exclude"
    if only is not None:
        found = f"all labels of only in exclude: {listed([preview(uid) for uid in dict.fromkeys(only)])}"
    return UsageError(found, expected="at least one label to rank", do="take a label out of exclude")


def _texts(request: PredictRequest, limits: Limits) -> list[str]:
    if (request.text is None) == (request.texts is None):
        found = "neither text nor texts" if request.text is None else "both text and texts"
        raise UsageError(found, expected="one of them", do="send text for one text, texts for several")
    texts = [request.text] if request.text is not None else request.texts or []
    limit = min(limits.texts, limits.queue)  # more texts than the queue holds could never be answered
    if not 1 <= len(texts) <= limit:
        kind = TooLargeError if texts else UsageError
        raise kind(
            f"{len(texts):,} texts", expected=f"1 to {limit:,}", do="send several requests" if texts else "send a text"
        )
    for number, text in enumerate(texts):
        name = f"texts[{number}]" if request.text is None else "text"
        if not INK.search(text):
            do = "leave it out" if len(texts) > 1 else "send another text"
            raise UsageError(f"an empty {name}", expected="a text with words", do=do)
        if len(text) > limits.text_chars:
            raise TooLargeError(
                f"{len(text):,} characters in {name}",
                expected=f"at most {limits.text_chars:,}",
                do="shorten it; the model reads the beginning only",
            )
    return texts


def _k(request: PredictRequest, served: Served, limits: Limits) -> int:
    labels, k = len(served.predictor.uids), request.k
    limit = min(labels, limits.k)
    if "k" not in request.model_fields_set:
        return min(k, limit)
    if not 1 <= k <= limit:
        reason = f"the model has {counted(labels, 'label')}" if limit == labels else "the server's limit"
        raise UsageError(f"k {shown(k, 60)}", expected=f"1 to {limit:,} ({reason})", do="fix k")
    return k


def _tail(tail: float | None, served: Served) -> float | None:
    if tail is not None and checked(tail) and not served.has_dial:
        raise _no_dial("tail", tail)
    return tail


def _min_probability(least: float, served: Served) -> float:
    if checked_probability(least) and not served.has_dial:
        raise _no_dial("min_probability", least)
    return least


def _no_dial(name: str, value: float) -> UsageError:
    return UsageError(f"{name} {value} for a model without a dial", expected=f"no {name}, or 0", do=f"leave {name} out")


def _labels(name: str, uids: list[str], served: Served, limits: Limits) -> frozenset[int]:
    if len(uids) > limits.filter_labels:
        raise TooLargeError(
            f"{len(uids):,} labels in {name}", expected=f"at most {limits.filter_labels:,}", do="send fewer"
        )
    for uid in uids:
        if uid not in served.ids:
            raise UsageError(
                f"unknown label {preview(uid)} in {name}{_nearest(uid, served.ids)}",
                expected=f"uids of labels of version {served.version}",
                do="fix the uid; it is not the title",
            )
    return frozenset(served.ids[uid] for uid in uids)


def _only(uids: list[str], served: Served, limits: Limits) -> frozenset[int]:
    if not uids:
        raise UsageError("an empty list as only", expected="at least one label", do="leave only out to rank all labels")
    return _labels("only", uids, served, limits)


def _nearest(uid: str, ids: Mapping[str, int]) -> str:
    """Return " (nearest: x)" for a label whose uid differs in case, form or one character; empty if there is none.

    Spellings are looked up. To compare the uids of millions of labels would take seconds, in which nobody is answered.
    """
    found = next((spelling for spelling in _spellings(uid) if spelling in ids), None)
    return "" if found is None else f" (nearest: {preview(found)})"


def _spellings(uid: str) -> Iterator[str]:
    """Yield other spellings: by white space, case and Unicode form, then with one character less, exchanged or more."""
    yield from (uid.strip(), uid.lower(), uid.upper(), *(unicodedata.normalize(form, uid) for form in ("NFC", "NFD")))
    if len(uid) > _MAX_SPELLED:
        return
    places = range(len(uid))
    yield from (uid[:i] + uid[i + 1 :] for i in places)
    yield from (uid[:i] + uid[i + 1 : i + 2] + uid[i] + uid[i + 2 :] for i in places)
    yield from (uid[:i] + letter + uid[i + 1 :] for i in places for letter in _LETTERS)
    yield from (uid[:i] + letter + uid[i:] for i in range(len(uid) + 1) for letter in _LETTERS)
