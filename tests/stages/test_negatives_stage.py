"""The stage negatives measures its search against exact search, on documents that are evenly spread."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.card import CARD
from tests.chain.toy import Edit
from tests.stages.halves import open_corpus
from xc_core import ann
from xc_core.ann import IndexPart, Search, base
from xc_core.chain import Workspace, run_stage
from xc_core.devices import CPU, Device
from xc_core.sampling import search_negatives
from xc_core.shapes import PAD_ID, Shortlist
from xc_core.stages import negatives


@pytest.mark.parametrize("measured", [50, 77, 1000])
def test_the_recall_is_the_share_of_the_true_hard_negatives_that_are_found(
    copied: Workspace, edit: Edit, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the search misses all negatives of every fifth document."""
    searched: list[np.ndarray[Any, Any]] = []

    def poor(index: Any, doc_ND: Any, rows: Any, known: Any, k: int) -> Shortlist:
        found = search_negatives(index, doc_ND, rows, known, k)
        searched.append(rows)
        if len(searched) > 1:
            return found
        missed_N1 = (np.arange(len(rows)) % 5 == 0)[:, None]
        return dataclasses.replace(found, ids_NK=np.where(missed_N1, PAD_ID, found.ids_NK).astype(np.int32))

    monkeypatch.setattr(negatives, "search_negatives", poor)
    monkeypatch.setattr(negatives, "_RECALL_DOCUMENTS", measured)
    edit(copied, {"experiments/toy_ngame/stages/negatives/k": 4})
    facts = run_stage(copied, "negatives", "toy", "ngame").facts
    rows = open_corpus(copied).published_rows()
    step = -(-len(rows) // measured)
    assert [own.tolist() for own in searched] == [rows.tolist(), rows[::step].tolist()]
    assert len(searched[1]) <= measured
    assert facts["recall"] == pytest.approx(np.mean(np.arange(0, len(rows), step) % 5 != 0))


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize(
    ("device", "up_to", "first"), [(CPU, base.BATCHES_EXACT_UP_TO, "exact"), (CPU, 5, "hnsw"), (CARD, 5, "exact")]
)
def test_no_graph_is_built_if_exact_search_of_batches_is_faster(
    device: Device, up_to: int, first: str, copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All searches are of many documents at once."""
    built: list[str] = []

    def spread(part: IndexPart, *given: Any) -> Search:
        index = ann.spread(part, *given)
        built.append(index.part.kind)  # type: ignore[attr-defined]
        return index

    monkeypatch.setattr(base, "EXACT_UP_TO", 5)
    monkeypatch.setattr(base, "BATCHES_EXACT_UP_TO", up_to)
    monkeypatch.setattr(Device, "chosen", lambda: device)
    monkeypatch.setattr(negatives, "spread", spread)
    edit(copied, {"experiments/toy_ngame/stages/negatives/k": 4})
    assert run_stage(copied, "negatives", "toy", "ngame").facts["recall"] == 1.0
    assert built == [first, "exact"]
