"""Checks of each row of a dataset. Imperfect data is accepted only if the user allows its kind by name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from xc_core.data.formats import Block
from xc_core.errors import ConfigError, DataError, nearest, preview
from xc_core.visible import CONTROL, INK

MOST_SHARED: Final = 0.01
"""Share of the test texts that may also appear in train, word for word; more needs ``--allow shared-texts``."""


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
    """More than 1 % of the test texts also appear in train, word for word (checked after the ingest)."""

    @classmethod
    def kinds(cls) -> list[str]:
        """Return the names of the kinds, as users write them."""
        return [f.name.replace("_", "-") for f in fields(cls)]

    @classmethod
    def parse(cls, names: tuple[str, ...]) -> Allowed:
        """Build from names as users write them, for instance ("empty-text",); raise ConfigError for an unknown one."""
        known = cls.kinds()
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"allow {name!r}{nearest(str(name), known)}",
                    expected=f"one of {', '.join(known)}",
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


def check_block(block: Block, allowed: Allowed, *, num_labels: int | None) -> None:
    """Raise DataError for the first invalid row of ``block``; ``num_labels`` is None for a block of labels."""
    if not _texts_are_fine(block, allowed):
        for row, (uid, title, content) in enumerate(zip(block.uids, block.titles, block.contents, strict=True)):
            _check_text(block, row, uid, f"{title} {content}", allowed)
    if num_labels is not None:
        _check_labels(block, allowed, num_labels)


def _texts_are_fine(block: Block, allowed: Allowed) -> bool:
    """Return True if ``_check_text`` accepts every row; all texts are searched at once."""
    if any(CONTROL.search(" ".join(column)) for column in (block.uids, block.titles, block.contents)):
        return False
    if not all(map(INK.search, block.uids)):
        return False
    if allowed.empty_text or all(map(INK.search, block.titles)):
        return True
    return all(
        INK.search(title) or INK.search(content) for title, content in zip(block.titles, block.contents, strict=True)
    )


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
            do="delete the row, or pass --allow empty-text",
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
        raise DataError(
            f"the label {block.label_ids[twice.min()]} twice",
            expected="each label once per document",
            do="delete the repetition, or pass --allow repeated-labels to count it once",
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
