"""Checks of each row of a dataset. Imperfect data is accepted only if the user allows its kind by name.

Also a check that no part of a dataset is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from xc_core.data.formats import Block, Texts
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.errors import ConfigError, DataError, nearest, preview
from xc_core.shapes import Array, Bool
from xc_core.visible import CONTROL, INK, counted

MOST_SHARED: Final = 0.01
"""Share of test texts that train or validation may have too, word for word; more needs ``--allow shared-texts``."""

_DELETE: Final = 0x7F
_C1_LEAD: Final = 0xC2
"""First byte of U+0080 to U+00BF."""
_C1_COMMANDS: Final = np.array([0x85, 0x90, 0x9B, 0x9D, 0x9E, 0x9F], np.uint8)
"""Second bytes of the characters of C1 that a text may not have."""
_PUNCTUATION_LEAD: Final = 0xE2
"""First byte of U+2000 to U+2FFF."""
_PUNCTUATION: Final = ((0x80, 0xA8, 0xAE), (0x81, 0xA6, 0xA9))
"""Second byte, first and last third byte of U+2028 to U+202E and U+2066 to U+2069."""
INK_LEADS: Final = np.zeros(256, bool)
"""True for first bytes of UTF-8 that only begin characters in which ``INK`` sees ink, as those of ASCII and é."""
for _first, _last in ((0x21, 0x7E), (0xC3, 0xCC), (0xD0, 0xD7), (0xE4, 0xE9)):
    INK_LEADS[_first : _last + 1] = True


@dataclass(frozen=True)
class Allowed:
    """Kinds of imperfect data that are accepted."""

    empty_text: bool = False
    """A document or label without any text."""
    empty_labels: bool = False
    """A document without labels."""
    unseen_labels: bool = False
    """A label without train documents."""
    repeated_labels: bool = False
    """A document that names a label twice (counted once)."""
    clean_text: bool = False
    """Line breaks, control characters and changes of direction in a text (each is replaced by a space)."""
    shared_texts: bool = False
    """More than 1 % of the test texts also appear in train or validation, word for word (checked after the ingest)."""

    @classmethod
    def kinds(cls) -> list[str]:
        """Return the names of the kinds, as users write them."""
        return [f.name.replace("_", "-") for f in fields(cls)]

    @classmethod
    def parse(cls, names: tuple[str, ...]) -> Allowed:
        """Build from names as users write them, for instance ("empty-text",); raise ConfigError for an unknown one."""
        kinds = cls.kinds()
        for name in names:
            if name not in kinds:
                raise ConfigError(
                    f"allow {name!r}{nearest(str(name), kinds)}",
                    expected=f"one of {', '.join(kinds)}",
                    do="fix the name",
                )
        return cls(**{name.replace("-", "_"): True for name in names})


def clean_block(block: Block, allowed: Allowed) -> Block:
    """Return the block with the repairs that the user allowed: texts cleaned, repeated labels dropped."""
    if allowed.clean_text:
        titles = [CONTROL.sub(" ", text) for text in block.titles]
        block = replace(block, titles=titles, contents=[CONTROL.sub(" ", text) for text in block.contents])
    if allowed.repeated_labels and len(block.label_ids):
        rows = np.repeat(np.arange(len(block)), block.label_counts)
        first = np.sort(np.unique(np.stack([rows, block.label_ids]), axis=1, return_index=True)[1])
        relevance = block.relevance[first] if block.relevance is not None else None
        counts = np.bincount(rows[first], minlength=len(block)).astype(np.int64)
        block = replace(block, label_ids=block.label_ids[first], label_counts=counts, relevance=relevance)
    return block


def checked_block(block: Block, allowed: Allowed, accepted: Counter[str], *, num_labels: int | None) -> Block:
    """Return the block repaired by ``clean_block`` and checked by ``check_block``.

    The rows with a flaw of each allowed kind are added to ``accepted``.
    """
    clean = clean_block(block, allowed)
    check_block(clean, allowed, num_labels=num_labels)
    if allowed.empty_text:
        accepted["empty-text"] += int((~(_has_ink(clean.titles) | _has_ink(clean.contents))).sum())
    if allowed.clean_text:
        columns = zip(block.titles, block.contents, clean.titles, clean.contents, strict=True)
        accepted["clean-text"] += sum([title, content] != repaired for title, content, *repaired in columns)
    if num_labels is not None and allowed.empty_labels:
        accepted["empty-labels"] += int((clean.label_counts == 0).sum())
    if num_labels is not None and allowed.repeated_labels:
        accepted["repeated-labels"] += int((block.label_counts != clean.label_counts).sum())
    return clean


def accepted_sentence(facts: Mapping[str, Any]) -> str:
    """Return how many rows were accepted of each kind that a corpus with these facts allows; empty if it allows none.

    Shared texts have no number, nor have the facts of a corpus that 0.2.0 made.
    """
    kinds, counts = facts.get("allow", ()), facts.get("accepted")
    if not kinds or counts is None:
        return ", ".join(kinds)
    shown = [f"{kind}: {counted(count, side[:-1])}" for side in counts for kind, count in counts[side].items()]
    shown += [kind for kind in kinds if kind == "shared-texts"]
    return ", ".join(shown) or f"no row ({', '.join(kinds)})"


def check_block(block: Block, allowed: Allowed, *, num_labels: int | None) -> None:
    """Raise DataError for the first invalid row of ``block``; ``num_labels`` is None for a block of labels."""
    if not _texts_are_fine(block, allowed):
        for row, (uid, title, content) in enumerate(zip(block.uids, block.titles, block.contents, strict=True)):
            _check_text(block, row, uid, f"{title} {content}", allowed)
    if num_labels is not None:
        _check_labels(block, allowed, num_labels)


def _texts_are_fine(block: Block, allowed: Allowed) -> bool:
    """Return True if ``_check_text`` accepts every row; all texts are searched at once."""
    if any(map(_has_control, (block.uids, block.titles, block.contents))) or not _has_ink(block.uids).all():
        return False
    return allowed.empty_text or bool((_has_ink(block.titles) | _has_ink(block.contents)).all())


def _has_control(texts: Sequence[str]) -> bool:
    """Return True if ``CONTROL`` finds a character in one of the texts."""
    return has_control(texts.utf8()[0]) if isinstance(texts, Texts) else CONTROL.search(" ".join(texts)) is not None


def has_control(utf8: Array) -> bool:
    """Return True if ``CONTROL`` finds a character in UTF-8 text, given as bytes."""
    if ((utf8 < ord(" ")) & (utf8 != ord("\t"))).any() or (utf8 == _DELETE).any():
        return True
    if np.isin(utf8[np.flatnonzero(utf8[:-1] == _C1_LEAD) + 1], _C1_COMMANDS).any():
        return True
    leads = np.flatnonzero(utf8[:-2] == _PUNCTUATION_LEAD)
    second, third = utf8[leads + 1], utf8[leads + 2]
    return any(((second == lead) & (third >= first) & (third <= last)).any() for lead, first, last in _PUNCTUATION)


def _has_ink(texts: Sequence[str]) -> Bool:
    """Return True for each text in which ``INK`` finds a character."""
    if not isinstance(texts, Texts):
        return np.fromiter((INK.search(text) is not None for text in texts), bool, len(texts))
    utf8, starts = texts.utf8()
    ink = np.zeros(len(texts), bool)
    filled = np.flatnonzero(starts[1:] > starts[:-1])
    ink[filled] = INK_LEADS[utf8[starts[filled]]]
    for row in filled[~ink[filled]].tolist():
        ink[row] = INK.search(texts[row]) is not None
    return ink


def _check_text(block: Block, row: int, uid: str, text: str, allowed: Allowed) -> None:
    if not INK.search(uid) or CONTROL.search(uid):
        raise DataError(
            f"the uid {preview(uid)}",
            expected="a uid of visible characters, without line breaks, control characters or changes of direction",
            do="change the uid of the row",
            where=block.where(row),
        )
    if match := CONTROL.search(text):
        raise DataError(
            f"the character {match[0]!r} in a text",
            expected="texts of one line, without control characters or changes of direction",
            do="clean the text, or pass --allow clean-text to replace each such character by a space",
            where=block.where(row),
        )
    if not allowed.empty_text and not INK.search(text):
        raise DataError(
            "a text of invisible characters" if text.strip() else "an empty text",
            expected="a title or a content",
            do="add a text, or pass --allow empty-text",
            where=block.where(row),
        )


def _check_labels(block: Block, allowed: Allowed, num_labels: int) -> None:
    rows = np.repeat(np.arange(len(block)), block.label_counts)
    outside = np.flatnonzero((block.label_ids < 0) | (block.label_ids >= num_labels))
    if len(outside):
        raise DataError(
            f"the label index {block.label_ids[outside[0]]}",
            expected=f"indices from 0 to {num_labels - 1} (there are {num_labels} labels)",
            do="fix the index; indices count from 0",
            where=block.where_labels(int(rows[outside[0]])),
        )
    empty = np.flatnonzero(block.label_counts == 0)
    if len(empty) and not allowed.empty_labels:
        raise DataError(
            "a document without labels",
            expected="at least one label",
            do="delete the row, or pass --allow empty-labels",
            where=block.where_labels(int(empty[0])),
        )
    keys = rows * np.int64(num_labels) + block.label_ids
    order = np.argsort(keys, kind="stable")
    twice = order[1:][keys[order][1:] == keys[order][:-1]]
    if len(twice):
        hint = "" if block.label_separator is None else "; if it is a part of a label, pass another --label-separator"
        raise DataError(
            f"the label {block.label(int(block.label_ids[twice.min()]))} twice",
            expected="each label once per document",
            do=f"delete the repetition, or pass --allow repeated-labels to count it once{hint}",
            where=block.where_labels(int(rows[twice.min()])),
        )
    if block.relevance is None:
        return
    wrong = np.flatnonzero(~((block.relevance > 0) & np.isfinite(block.relevance)))
    if len(wrong):
        raise DataError(
            f"the relevance {block.relevance[wrong[0]]:g} of the label {block.label_ids[wrong[0]]}",
            expected="a finite relevance above 0 (every listed pair is relevant; the degree is not used)",
            do="drop pairs that are not relevant",
            where=block.where_labels(int(rows[wrong[0]])),
        )


def check_sizes(labels: int, sizes: Mapping[str, int]) -> None:
    """Raise DataError if there are no labels, or no documents of train or of test."""
    if labels and sizes[TRAIN] and sizes[TEST]:
        return
    counts = f"{labels} labels, {sizes[TRAIN]} train and {sizes[TEST]} test documents"
    held_out = f" ({sizes[VALIDATION]} more for validation)" if sizes[VALIDATION] else ""
    all_held_out = bool(held_out) and not sizes[TRAIN]
    do = "check that the files are complete" + (", or lower --validation-fraction" if all_held_out else "")
    if not sizes[TEST]:
        do += "; test rows are split off a table if there is no test file, so delete an empty one"
        do += ", or raise --test-fraction if there are few rows"
    raise DataError(counts + held_out, expected="at least one of each", do=do)
