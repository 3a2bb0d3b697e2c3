"""A corpus with more labels at the end, made from the present one: its documents are linked, not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from xc_core.artifacts import Build, read_made
from xc_core.data import corpus as schemas
from xc_core.data.alike import alike_labels
from xc_core.data.checks import Allowed
from xc_core.data.corpus import Corpus
from xc_core.data.cut import FAMILIES
from xc_core.data.filters import generated_pairs
from xc_core.data.formats import Layout, Source, source_facts
from xc_core.data.ingest import IngestConfig
from xc_core.data.label_table import LabelsWriter
from xc_core.errors import DataError
from xc_core.linked import link_files

_DOCUMENTS: Final = ("documents.parquet", "pairs.parquet", "filters.parquet")


def with_more_labels(
    folder: Path, opened: tuple[Layout, Source], build: Build, config: IngestConfig, before: Corpus
) -> None:
    """Write the corpus that an ingest of ``folder`` would make, byte for byte, if only labels came since ``before``.

    The new labels are the last ones, no document has them, and their uids are new; the caller knows. ``opened`` is the
    layout and the source of ``folder``, whose ``documents_stay``. Raises DataError for the first wrong label.
    """
    layout, source = opened
    with LabelsWriter(build.path, Allowed.parse(config.allow)) as labels:
        for block in source.labels():
            labels.add(block)
    families = [FAMILIES] if (before.folder / FAMILIES).is_file() else []
    link_files(before.folder, build.path, [*_DOCUMENTS, *families])
    unseen = int(before.facts["unseen_labels"]) + labels.size - before.num_labels
    content = {**before.facts, "labels": labels.size, "unseen_labels": unseen}
    facts = read_made(before.folder).facts
    build.json(schemas.CONTENT, content)
    _check_filters(build.path, config)
    build.facts |= {
        **facts,
        **content,
        "layout": layout.name,
        "source": source_facts(source, folder),
        "allow": list(config.allow),
        "alike_labels": alike_labels(Corpus.unsealed(build.path)),
    }
    if "accepted" in facts:  # otherwise its accepted documents were not counted
        accepted = labels.all_accepted(unseen - before.labels_in_test_only)
        build.facts["accepted"] = {"documents": facts["accepted"]["documents"], "labels": accepted}


def _check_filters(folder: Path, config: IngestConfig) -> None:
    """Raise DataError if filter pairs are made from uids, and a new label has the uid of a document."""
    if config.filters != "generate":
        return
    present = pl.read_parquet(folder / "filters.parquet", glob=False).to_numpy()
    if not np.array_equal(present, generated_pairs(folder)):
        raise DataError(
            "new labels with the uid of a document, which filter pairs are made from",
            expected="labels that change nothing but the labels; nothing has changed",
            do="xc update FOLDER, then a refresh (docs/runbook.md)",
        )
