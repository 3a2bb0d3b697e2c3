"""Makes a dataset of a million documents and a million labels with real texts: pairs of the bundled WordNetMini.

``python -m benchmarks.product FOLDER`` writes the layout `tabular`. A document joins the texts of two documents of one
split. A label joins the titles of two labels; a document has it if its first half has the first and its second half the
second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np
import polars as pl

from xc_core.data.labels import LabelMatrix
from xc_core.seeds import generator
from xc_core.shapes import I64, Array

RAW: Final = Path(__file__).parents[1] / "data" / "wordnet-mini" / "raw"
EACH: Final = 3
"""Labels drawn per document, of all that it has; repeated ones count once."""
SPARE: Final = 1.6
"""Documents drawn per document wanted; those whose labels are all too rare are left out."""


@dataclass(frozen=True)
class Halves:
    """Texts that product documents are made of, and their labels."""

    split: str
    texts: pl.Series
    truth: LabelMatrix

    @classmethod
    def read(cls, split: str, num_labels: int) -> Halves:
        """Return the documents of a file of WordNetMini that have labels."""
        rows = _read(split).filter(pl.col("target_ind").list.len() > 0)
        pairs = rows.select("target_ind").with_row_index().explode("target_ind")
        shape = (len(rows), num_labels)
        return cls(
            split, _text(rows), LabelMatrix.from_pairs(pairs["index"].to_numpy(), pairs["target_ind"].to_numpy(), shape)
        )

    def draw(self, count: int) -> tuple[I64, Array]:
        """Return ``count`` different pairs of documents (N x 2), and the keys of their labels (N x EACH)."""
        random, size = generator(0, self.split), len(self.texts)
        numbers_N = random.choice(size * size, count, replace=False)
        pairs_N2 = np.stack(np.divmod(numbers_N, size), 1)
        counts, starts = self.truth.counts_N[pairs_N2][:, None], self.truth.indptr[pairs_N2][:, None]
        positions = starts + np.floor(random.random((count, EACH, 2)) * counts).astype(np.int64)
        labels = self.truth.indices[positions].astype(np.int64)
        return pairs_N2, labels[:, :, 0] * self.truth.num_labels + labels[:, :, 1]

    def frame(self, pairs_N2: I64, keys_NE: I64, known_L: I64, limit: int) -> pl.DataFrame:
        """Return ``limit`` documents that have labels among ``known_L`` (sorted keys): uid, text, labels."""
        positions = np.minimum(np.searchsorted(known_L, keys_NE), len(known_L) - 1)
        inside = known_L[positions] == keys_NE
        selected = np.flatnonzero(inside.any(1))[:limit]
        rows = np.repeat(np.arange(len(selected)), EACH)[inside[selected].ravel()]
        cells = {"row": rows, "label": positions[selected][inside[selected]]}
        labels = pl.DataFrame(cells).unique().sort("row", "label")
        first, second = pairs_N2[selected].T
        return pl.DataFrame(
            {
                "uid": [f"{self.split}-{a}-{b}" for a, b in pairs_N2[selected].tolist()],
                "text": self.texts.gather(first) + " " + self.texts.gather(second),
                "labels": labels.group_by("row", maintain_order=True).agg("label")["label"],
            }
        )


def most_frequent(keys_NE: I64, limit: int) -> I64:
    """Return the ``limit`` keys that most documents have, ascending; equals are drawn."""
    ordered = np.sort(keys_NE, axis=1)
    keys_once_per_document = np.concatenate([ordered[:, :1].ravel(), ordered[:, 1:][ordered[:, 1:] != ordered[:, :-1]]])
    keys, counts = np.unique(keys_once_per_document, return_counts=True)
    chosen = np.lexsort([generator(0, "equals").random(len(keys)), -counts])[:limit]
    return np.sort(keys[chosen])


def _read(name: str) -> pl.DataFrame:
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "title": pl.String,
        "content": pl.String,
        "target_ind": pl.List(pl.Int64),
    }
    return pl.read_ndjson(RAW / f"{name}.json.gz", schema=schema)


def _text(rows: pl.DataFrame) -> pl.Series:
    return rows.select(pl.concat_str("title", "content", separator=" ", ignore_nulls=True).str.strip_chars())["title"]


@click.command()
@click.argument("folder", type=Path)
@click.option("--documents", default=1_000_000, show_default=True, help="Train documents.")
@click.option("--test", default=20_000, show_default=True, help="Test documents.")
@click.option("--labels", default=1_000_000, show_default=True)
def main(folder: Path, documents: int, test: int, labels: int) -> None:
    """Write train, test and labels as Parquet into FOLDER."""
    titles = _read("lbl")["title"]
    train, tests = Halves.read("trn", len(titles)), Halves.read("tst", len(titles))
    pairs, keys = train.draw(int(SPARE * documents))
    label_keys = most_frequent(keys[:documents], labels)
    folder.mkdir(parents=True, exist_ok=True)
    first, second = np.divmod(label_keys, len(titles))
    texts = titles.gather(first) + " + " + titles.gather(second)
    tables = {
        "train": train.frame(pairs, keys, label_keys, documents),
        "test": tests.frame(*tests.draw(int(SPARE * test)), label_keys, test),
        "labels": pl.DataFrame({"uid": [f"p{key}" for key in label_keys.tolist()], "text": texts}),
    }
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
        click.echo(f"{name}: {len(table):,} rows")
    used = np.bincount(tables["train"]["labels"].explode().to_numpy(), minlength=len(label_keys))
    click.echo(
        f"documents per label: median {np.median(used):.0f}, most {used.max():,}; without any: {(used == 0).sum():,}"
    )


if __name__ == "__main__":
    main()
