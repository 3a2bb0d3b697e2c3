"""What came and went between two corpora, by uid: documents, labels and pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from xc_core.artifacts import read_made
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.visible import counted


@dataclass(frozen=True)
class Moves:
    """Documents or labels that differ, as sorted uids."""

    before: int
    after: int
    added: list[str]
    removed: list[str]
    changed: list[str]
    """Present in both, with another text or (documents) other labels."""

    def __str__(self) -> str:
        return f"{len(self.added):,} new, {len(self.changed):,} changed, {len(self.removed):,} removed"


@dataclass(frozen=True)
class Difference:
    """The difference between an earlier corpus and a later one."""

    documents: Moves
    labels: Moves
    pairs: Mapping[str, int]
    """Pairs ``before``, ``after``, ``added`` and ``removed``; ``lost``: removed less added, of documents in both."""
    moved: list[str]
    """Documents that went from train or validation to test, or back."""
    tests: Mapping[str, int]
    """Test documents ``before``, those of them that are ``gone``, and those that are ``lost``: gone, or no longer test
    documents.

    If the test documents were and are the last rows of a table, earlier ones become train documents: these are not
    lost. If they had a file of their own, they are."""
    known_tests: int
    """Test documents whose text only train or validation documents had before, with other uids."""

    @classmethod
    def of(cls, before: Corpus, after: Corpus) -> Difference:
        """Compare two corpora. Texts and pairs are compared by 64-bit hashes."""
        pairs_before, pairs_after = _pairs(before), _pairs(after)
        removed = pairs_before.join(pairs_after, on=["doc", "label"], how="anti")
        added = pairs_after.join(pairs_before, on=["doc", "label"], how="anti")
        documents_before, documents_after = _rows(before, "documents"), _rows(after, "documents")
        in_both = documents_before.join(documents_after, on="uid")
        lost = _count_pairs_of(removed, in_both["key"]) - _count_pairs_of(added, in_both["key"])
        tests, learnt = (
            documents_before.filter(pl.col("split").is_in(splits)) for splits in ([TEST], [TRAIN, VALIDATION])
        )
        tests_after = documents_after.filter(pl.col("split") == TEST)
        known_tests = tests_after.join(learnt, on="text", how="semi")
        kept = documents_after if _last_are_tests(before) and _last_are_tests(after) else tests_after
        lost_tests, gone_tests = (len(tests.join(left, on="uid", how="anti")) for left in (kept, documents_after))
        moved = in_both.filter((pl.col("split") == TEST) != (pl.col("split_right") == TEST))["uid"].sort().to_list()
        return cls(
            _moves(documents_before, documents_after, pl.concat([removed["doc"], added["doc"]])),
            _moves(_rows(before, "labels"), _rows(after, "labels")),
            {
                "before": len(pairs_before), "after": len(pairs_after),
                "added": len(added), "removed": len(removed), "lost": max(lost, 0),
            },
            moved,
            {"before": len(tests), "lost": lost_tests, "gone": gone_tests},
            len(known_tests.join(tests, on="text", how="anti").join(learnt, on="uid", how="anti")),
        )  # fmt: skip

    def __str__(self) -> str:
        pairs = f"{self.pairs['added']:,} new, {self.pairs['removed']:,} removed"
        moved = f"; {counted(len(self.moved), 'document')} moved into test, or out of it" if self.moved else ""
        return f"documents: {self.documents}; labels: {self.labels}; pairs: {pairs}{moved}"


def _last_are_tests(corpus: Corpus) -> bool:
    """Return True if the test documents are the last rows of a train table, split off by time."""
    return bool(read_made(corpus.folder).facts.get("split", {}).get("last_are_tests"))


def _rows(corpus: Corpus, side: str) -> pl.DataFrame:
    """Return uid, hash of the text, hash of the uid, and (documents) the split."""
    text = pl.concat_str([pl.col("title").fill_null(""), pl.col("content").fill_null("")], separator="\x1f").hash()
    more = [pl.col("split")] if side == "documents" else []
    return (
        pl.scan_parquet(corpus.folder / f"{side}.parquet", glob=False)
        .select("uid", *more, text=text, key=pl.col("uid").hash())
        .collect()
    )


def _pairs(corpus: Corpus) -> pl.DataFrame:
    """Return the pairs of a corpus as hashes of uids: doc, label."""
    pairs = pl.read_parquet(corpus.folder / "pairs.parquet", glob=False)
    keys = {side: pl.read_parquet(corpus.folder / f"{side}s.parquet", columns=["uid"], glob=False)["uid"].hash()
            for side in ("document", "label")}  # fmt: skip
    return pl.DataFrame({"doc": keys["document"].gather(pairs["doc"]), "label": keys["label"].gather(pairs["label"])})


def _count_pairs_of(pairs: pl.DataFrame, docs: pl.Series) -> int:
    """Return the number of pairs whose document is one of ``docs``."""
    return len(pairs.filter(pl.col("doc").is_in(docs.implode())))


def _moves(before: pl.DataFrame, after: pl.DataFrame, relabelled: pl.Series | None = None) -> Moves:
    changed = pl.col("text") != pl.col("text_right")
    if relabelled is not None:
        changed |= pl.col("key").is_in(relabelled.implode())
    return Moves(
        len(before),
        len(after),
        _uids(after.join(before, on="uid", how="anti")),
        _uids(before.join(after, on="uid", how="anti")),
        _uids(before.join(after, on="uid").filter(changed)),
    )


def _uids(rows: pl.DataFrame) -> list[str]:
    return sorted(rows["uid"].to_list())
