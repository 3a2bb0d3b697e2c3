"""Labels that a reader cannot tell apart, because their texts are the same but for their form, or are only codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from xc_core.data.corpus import Corpus


def alike_labels(corpus: Corpus) -> dict[str, Any]:
    """Return how many ``labels`` share their text with others, and the uids of the ``first`` two of one text.

    Texts are compared in Unicode's form NFKC and lower case, white space aside; 64-bit hashes are compared, so memory
    does not grow with the length of the texts. Empty if there are none.
    """
    plain = _text(corpus).str.normalize("NFKC").str.to_lowercase().str.replace_all(r"\s+", " ").str.strip_chars()
    labels = pl.scan_parquet(corpus.folder / "labels.parquet", glob=False).select("uid", text=plain)
    keys = labels.filter(pl.col("text") != "").select("uid", key=pl.col("text").hash()).collect(engine="streaming")
    shared = keys.filter(pl.col("key").is_duplicated())
    if shared.is_empty():
        return {}
    first = shared.filter(pl.col("key") == shared["key"][0])["uid"].head(2).to_list()
    return {"labels": len(shared), "first": first}


def codes(corpus: Corpus) -> int:
    """Return how many labels have a text without a letter, as numbers have."""
    labels = pl.scan_parquet(corpus.folder / "labels.parquet", glob=False).select(~_text(corpus).str.contains(r"\p{L}"))
    return int(labels.sum().collect(engine="streaming").item())


def _text(corpus: Corpus) -> pl.Expr:
    return pl.concat_str([pl.col(name).fill_null("") for name in corpus.fields], separator=" ")


def sentence(found: Mapping[str, Any]) -> str:
    """Return what ``alike_labels`` found as one sentence."""
    return (
        f"{found['labels']:,} labels have the same text as another one, but for case, Unicode form and white space "
        f"(the first: {' and '.join(found['first'])}); label texts cannot tell them apart"
    )
