"""Cut the validation documents of a corpus again, by families: its files stay, and no source file is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.data.checks import check_sizes
from xc_core.data.corpus import CONTENT, Corpus
from xc_core.data.cut import Cut, write_splits
from xc_core.data.formats import Block, Texts
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import TEST, TRAIN, VALIDATION, digests
from xc_core.linked import link_files
from xc_core.progress import Meter

_TABLES: Final = tuple(f"{name}.parquet" for name in ("documents", "labels", "pairs", "filters"))
_ROWS_AT_ONCE: Final = 16_384


def is_enough(config: IngestConfig, facts: Mapping[str, Any]) -> bool:
    """Return True if ``recut`` can make the corpus of ``config``; if not, the files have to be read again.

    ``facts`` are those of a corpus by uid that was made of the same files, with settings otherwise the same.
    """
    split = facts["split"]
    cut_by_text_alone = not config.acceptance_fraction and not split["given"] and "families_named" not in split
    return config.split == "family" and cut_by_text_alone


def recut(old: Path, build: Build, config: IngestConfig) -> None:
    """Make in ``build`` what an ingest with ``config``, a split by family, would make of the files of a corpus.

    The corpus at ``old`` must come from an ingest of which it ``is_enough``. Raises DataError if no train documents are
    left.
    """
    before = Corpus.open(old)
    link_files(old, build.path, _TABLES)
    content = dict(before.facts)
    rows, pairs = ({split: content[name][split] for split in (TRAIN, VALIDATION, TEST)} for name in ("rows", "pairs"))
    cut = Cut(build.path, config.split, config.validation_fraction, given=False)
    with Meter("reading documents", 0, "documents") as meter:
        for block in _published(old, rows[TRAIN] + rows[VALIDATION]):
            cut.splits(block, TRAIN, digests(block.uids))
            meter.update(len(block))
    split_N = cut.finish()
    if split_N is not None:
        moved = write_splits(build.path, split_N)
        rows, pairs = rows | moved[0], pairs | moved[1]
    check_sizes(before.num_labels, rows)
    content |= {"rows": rows, "pairs": pairs}
    build.json(CONTENT, content)
    facts = artifacts.read_made(old).facts
    build.facts |= {**facts, **content, "split": {**cut.facts(), **facts["split"], "by": config.split}}


def _published(folder: Path, count: int) -> Iterator[Block]:
    """Yield the first ``count`` documents of a corpus, those of train and validation."""
    file, fields = pq.ParquetFile(folder / "documents.parquet"), ["uid", "title", "content"]
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=fields):
        documents = batch.slice(0, count)
        if not len(documents):
            return
        count -= len(documents)
        uids, titles, contents = map(Texts, documents.columns)
        yield Block("documents.parquet", 1, uids, titles, contents)
