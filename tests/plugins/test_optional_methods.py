"""A part of a package is asked for the optional methods and attributes that it has, whatever its class derives from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.scores.toy import unit
from xc_core.ann import Auto, Exact, IndexPart, exact_search, with_more
from xc_core.data.formats import LAYOUTS, Layout, ReadOptions, Source, open_source
from xc_core.losses.base import Stateless
from xc_core.params import in_use
from xc_core.plugins import HasOutside, HasUnread
from xc_core.scores import Query, Score
from xc_core.scores.base import HasIndex
from xc_core.scores.vectors import VectorScore
from xc_core.stages.scores import _for_batches

VECTORS = unit(20, 1)


class Plain:
    """An index without optional methods that finds the last labels."""

    part, size, width, vectors_LD = Exact(), *VECTORS.shape, None

    def search(self, queries_BD: Any, k: int) -> Any:
        return Exact().build(VECTORS).search(-queries_BD, k)


class Whole(Plain):
    def exactly(self, queries_BD: Any, k: int) -> Any:
        return Exact().build(VECTORS).search(queries_BD, k)

    def extended(self, vectors_ND: Any) -> Any:
        return len(vectors_ND)


class Always(Whole):
    always_exact = True


def test_an_index_is_extended_and_measured_by_the_methods_that_it_has() -> None:
    plain, whole, always, more = Plain(), Whole(), Always(), VECTORS[:2]
    assert [with_more(index, more) for index in (plain, whole, always)] == [None, 2, 2]  # type: ignore[list-item]
    assert exact_search(plain, VECTORS, 1) is None
    found = exact_search(whole, VECTORS, 1)
    assert found is not None
    assert found.ids_NK[:, 0].tolist() == list(range(20))
    figures = [VectorScore(VECTORS, index).figures(Query(VECTORS[:5])) for index in (plain, whole, always)]
    assert figures[::2] == [{}, {"recall": 1.0}]
    assert figures[1].keys() == {"recall"}


@dataclass(frozen=True, kw_only=True)
class Part(Stateless):
    used: int = 1
    idle: int = 2

    def unused(self) -> frozenset[str]:
        return frozenset({"idle"})


class StageSettings:
    def unread(self) -> frozenset[str]:
        return frozenset({"clusters"})

    def outside(self) -> dict[str, list[Path]]:
        return {}


def test_settings_say_what_they_do_not_use_or_read_without_a_base_class() -> None:
    assert in_use(Part()) == {"kind": "", "used": 1}
    assert isinstance(StageSettings(), HasUnread)
    assert isinstance(StageSettings(), HasOutside)


@dataclass(frozen=True, kw_only=True)
class Searching(Score):
    index: Any = field(default_factory=Auto)


@dataclass(frozen=True, kw_only=True)
class Counting(Score):
    most: int = 1


@pytest.mark.parametrize("index", [Auto(), "auto", None])
def test_the_index_of_a_score_is_replaced_for_batches_if_it_is_one(index: Any) -> None:
    score = Searching(index=index)
    assert isinstance(score, HasIndex)
    assert _for_batches(score) == (Searching(index=index.for_batches()) if isinstance(index, IndexPart) else score)


def test_a_score_without_an_index_stays() -> None:
    assert not isinstance(Counting(), HasIndex)
    assert _for_batches(score := Counting()) is score


class Least:
    """A source with what every source has."""

    __slots__ = ("files",)

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.files = [folder / "only.txt"]

    def filters(self, split: str) -> Path | None:
        return self.files[0]


class Numbered(Least):
    """A source with two optional attributes; its labels are numbered like its documents."""

    splits = ("train", "validation", "test")
    has_uids = False


class Most(Numbered):
    splits_off = documents_stay = True

    @property
    def names_labels(self) -> bool:
        return len(self.files) == 1


@pytest.mark.parametrize(
    ("kind", "splits", "has_uids", "names_labels", "others"),
    [
        (Least, ("train", "test"), True, True, False),
        (Numbered, ("train", "validation", "test"), False, False, False),
        (Most, ("train", "validation", "test"), False, True, True),
    ],
)
def test_a_source_has_defaults_for_what_it_lacks_and_nothing_else(
    kind: Any,
    splits: Any,
    has_uids: bool,
    names_labels: bool,
    others: bool,
    *,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(LAYOUTS._parts, "only", Layout("only", ("only.txt",), "only.txt", kind))
    (tmp_path / "only.txt").touch()
    source: Source = open_source(tmp_path, "only", ReadOptions())[1]
    assert (source.splits, source.has_uids, source.names_labels) == (splits, has_uids, names_labels)
    assert (source.splits_off, source.documents_stay) == (others, others)
    assert source.filters("train") == source.files[0]
    assert isinstance(source, kind)
    with pytest.raises(AttributeError, match="documents"):
        source.documents("train")
