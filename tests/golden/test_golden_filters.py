"""The same slice with filters: for every document, the label with the largest overlap of words is filtered.

The golden figures show that filters reach both trainings. The tests below compute every published figure again, without
the stage evaluation: shortlists of the packed model, with and without filtered pairs, measured by the naive metrics.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.arrays import stacked
from tests.golden.compare import FILTERED, PLAIN, assert_golden, corpus_of, golden, positives_and_weights
from tests.golden.wordnet_slice import run_chain
from tests.naive import metrics as naive
from xc_core.chain import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.splits import TEST
from xc_core.infer.bundle import open_predictor
from xc_core.shapes import PAD_ID

BINS = {"tail": (0, 3), "torso": (4, 20), "head": (21, 10**9)}


@dataclass(frozen=True)
class Evaluated:
    """The chain, and the ranked labels of each test document by every score, before filtering."""

    workspace: Workspace
    corpus: Corpus
    ranked: dict[str, list[list[int]]]

    def file(self, name: str) -> Any:
        path = self.workspace.folder("evaluation", "slice", "ngame") / name
        return np.load(path) if path.suffix == ".npz" else json.loads(path.read_text("utf-8"))

    def left(self, score: str) -> list[list[int]]:
        """Return the ranked labels of ``score`` without the filtered ones."""
        filters = self.corpus.filters.rows(self.corpus.rows(TEST))
        return naive.filtered(self.ranked[score], [set(filters.row(i).tolist()) for i in range(len(filters))])


@pytest.fixture(scope="module")
def evaluated(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    workspace = run_chain(tmp_path_factory.mktemp("filtered"), filtered=True)
    corpus, ranker = corpus_of(workspace), open_predictor(workspace.folder("model", "slice", "ngame")).ranker
    vectors = Embeddings.open(workspace.folder("embeddings", "slice", "ngame")).documents_ND
    rules = {"fusion": ranker.fusion, **ranker.fusion.parts()}
    rows, alone = corpus.rows(TEST), ("label_text", "classifier")
    found = stacked(ranker.blocks(vectors, rows, lambda: corpus.texts_of("documents", rows), rules, "ranking", alone))
    ranked = {name: [[i for i in row if i != PAD_ID] for row in short.ids_NK.tolist()] for name, short in found.items()}
    return Evaluated(workspace, corpus, ranked)


def test_the_chain_with_filters_ends_with_its_golden_figures(evaluated: Evaluated) -> None:
    assert_golden(evaluated.workspace, FILTERED)
    assert len(evaluated.corpus.filters.indices) == 360


def test_filters_move_every_golden_loss_and_metric() -> None:
    """Otherwise the second world would show nothing that the first one does not.

    The first loss of the encoder is that of 32 documents with a label each, among which few pairs are filtered.
    """
    plain, filtered = golden(PLAIN), golden(FILTERED)
    assert filtered["counts"] == plain["counts"]
    for name, loss in plain["losses"].items():
        if name == "encoder first":
            assert filtered["losses"][name] != loss
            continue
        assert abs(filtered["losses"][name] - loss) > 0.001 * loss, name
    for name, value in plain["metrics"].items():
        assert filtered["metrics"][name] < value - 1.5, name


def test_the_published_metrics_are_those_of_shortlists_without_filtered_pairs(evaluated: Evaluated) -> None:
    truth, weight = positives_and_weights(evaluated.corpus)
    both = evaluated.left("fusion"), evaluated.ranked["fusion"]
    left, whole = (naive.metrics(ranked, truth, weight) for ranked in both)
    assert evaluated.file("metrics.json") == pytest.approx(left)
    assert evaluated.file("report.json")["metrics"] == pytest.approx(left)
    for name, value in whole.items():
        assert value != pytest.approx(left[name], abs=0.5), f"{name} would differ without the filter"


def test_every_score_of_the_ablation_is_evaluated_without_filtered_pairs(evaluated: Evaluated) -> None:
    truth, weight = positives_and_weights(evaluated.corpus)
    ablation = evaluated.file("report.json")["ablation"]
    assert ablation.keys() == evaluated.ranked.keys() == {"fusion", "label_text", "classifier", "sum"}
    for score, figures in ablation.items():
        assert figures == pytest.approx(naive.metrics(evaluated.left(score), truth, weight)), score
        assert figures["R_at_10"] != naive.metrics(evaluated.ranked[score], truth, weight)["R_at_10"], score


def test_the_figures_of_each_document_are_without_filtered_pairs(evaluated: Evaluated) -> None:
    """Paired tests of two models read them."""
    truth, _ = positives_and_weights(evaluated.corpus)
    arrays = evaluated.file("per_document.npz")
    for score in evaluated.ranked:
        first = [row[0] in own for row, own in zip(evaluated.left(score), truth, strict=True)]
        assert arrays[f"{score}/num/P_at_1"].tolist() == [float(hit) for hit in first], score
        ten = [len(own & set(row[:10])) / len(own) for row, own in zip(evaluated.left(score), truth, strict=True)]
        assert arrays[f"{score}/num/R_at_10"].tolist() == pytest.approx(ten), score


def test_the_figures_by_frequency_are_without_filtered_pairs(evaluated: Evaluated) -> None:
    truth, _ = positives_and_weights(evaluated.corpus)
    frequency = evaluated.corpus.published_train().frequency_L()
    report, ranked = evaluated.file("report.json"), evaluated.left("fusion")
    parts = [(report["bins"][name], low, high) for name, (low, high) in BINS.items()]
    parts += [(part, part["from"], part["to"]) for part in report["deciles"]]
    for part, low, high in parts:
        chosen = {label for label, count in enumerate(frequency.tolist()) if low <= count <= high}
        for name, value in naive.by_frequency(ranked, truth, chosen).items():
            assert part[name] == (None if np.isnan(value) else pytest.approx(value)), (name, low, high)


def test_an_interval_lies_around_its_metric(evaluated: Evaluated) -> None:
    """Bounds from 1,000 resamples of 60 documents: a standard deviation of about 5 points at a P@1 of 20."""
    metrics, intervals = evaluated.file("metrics.json"), evaluated.file("report.json")["intervals"]
    assert intervals.keys() == metrics.keys()
    for name, (low, high) in intervals.items():
        assert low < metrics[name] < high, name
        assert (low + high) / 2 == pytest.approx(metrics[name], abs=2), name


def test_the_examples_show_no_filtered_label(evaluated: Evaluated) -> None:
    rows, titles = evaluated.corpus.rows(TEST), evaluated.corpus.table("labels")["title"].to_list()
    uids = evaluated.corpus.table("documents", rows)["uid"].to_list()
    for example in evaluated.file("examples.json"):
        row = evaluated.left("fusion")[uids.index(example["uid"])]
        assert [answer["label"] for answer in example["predicted"]] == [titles[label] for label in row[:5]]
