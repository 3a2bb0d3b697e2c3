"""The same slice with filters: every document leaves out the label whose words are most alike to its own.

The golden figures show that filters reach both trainings; the tests below recount everything published without the
stage evaluation: shortlists of the packed model, with and without the filtered pairs, measured by the slow twin.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.golden.compare import FILTERED, PLAIN, assert_golden, corpus_of, golden, positives_and_weights
from tests.golden.wordnet_slice import run_chain
from tests.naive import metrics as naive
from xc_core.bundle import open_bundle
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST
from xc_core.fusion import parts_of
from xc_core.shapes import PAD_ID
from xc_core.stages import Workspace

BINS = {"tail": (0, 3), "torso": (4, 20), "head": (21, 10**9)}


@dataclass(frozen=True)
class Judged:
    """The chain, and the ranked labels of each test document by every score, before anything is filtered."""

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
def judged(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    workspace = run_chain(tmp_path_factory.mktemp("filtered"), filtered=True)
    corpus, scorer = corpus_of(workspace), open_bundle(workspace.folder("model", "slice", "ngame")).scorer
    vectors = np.load(workspace.folder("embeddings", "slice", "ngame") / "documents.npy")
    rules = {"fusion": scorer.fusion, **parts_of(scorer.fusion.config)}
    found = scorer.shortlist_rows(vectors, corpus.rows(TEST), rules, "ranking")
    ranked = {name: [[i for i in row if i != PAD_ID] for row in short.ids_NK.tolist()] for name, short in found.items()}
    return Judged(workspace, corpus, ranked)


def test_the_chain_with_filters_ends_with_its_golden_figures(judged: Judged) -> None:
    assert_golden(judged.workspace, FILTERED)
    assert judged.corpus.facts["filters"]["pairs"] == 360


def test_filters_move_every_golden_loss_and_metric() -> None:
    """Else the second world would show nothing that the first does not."""
    plain, filtered = golden(PLAIN), golden(FILTERED)
    assert filtered["counts"] == plain["counts"]
    for name, loss in plain["losses"].items():
        assert abs(filtered["losses"][name] - loss) > 0.001 * loss, name
    for name, value in plain["metrics"].items():
        assert filtered["metrics"][name] < value - 1.5, name


def test_the_published_metrics_are_those_of_shortlists_without_filtered_pairs(judged: Judged) -> None:
    truth, weight = positives_and_weights(judged.corpus)
    left, whole = (naive.metrics(ranked, truth, weight) for ranked in (judged.left("fusion"), judged.ranked["fusion"]))
    assert judged.file("metrics.json") == pytest.approx(left)
    assert judged.file("report.json")["metrics"] == pytest.approx(left)
    for name, value in whole.items():
        assert value != pytest.approx(left[name], abs=0.5), f"{name} would be another without the filter"


def test_every_score_of_the_ablation_is_judged_without_filtered_pairs(judged: Judged) -> None:
    truth, weight = positives_and_weights(judged.corpus)
    ablation = judged.file("report.json")["ablation"]
    assert ablation.keys() == judged.ranked.keys() == {"fusion", "label_text", "classifier", "sum"}
    for score, figures in ablation.items():
        assert figures == pytest.approx(naive.metrics(judged.left(score), truth, weight)), score
        assert figures["R_at_10"] != naive.metrics(judged.ranked[score], truth, weight)["R_at_10"], score


def test_the_figures_of_each_document_are_without_filtered_pairs(judged: Judged) -> None:
    """They are what paired tests of two models read."""
    truth, _ = positives_and_weights(judged.corpus)
    arrays = judged.file("per_document.npz")
    for score in judged.ranked:
        first = [row[0] in own for row, own in zip(judged.left(score), truth, strict=True)]
        assert arrays[f"{score}/num/P_at_1"].tolist() == [float(hit) for hit in first], score
        ten = [len(own & set(row[:10])) / len(own) for row, own in zip(judged.left(score), truth, strict=True)]
        assert arrays[f"{score}/num/R_at_10"].tolist() == pytest.approx(ten), score


def test_the_figures_by_frequency_are_without_filtered_pairs(judged: Judged) -> None:
    truth, _ = positives_and_weights(judged.corpus)
    frequency = judged.corpus.published_train().frequency_L()
    report, ranked = judged.file("report.json"), judged.left("fusion")
    parts = [(report["bins"][name], low, high) for name, (low, high) in BINS.items()]
    parts += [(part, part["from"], part["to"]) for part in report["deciles"]]
    for part, low, high in parts:
        chosen = {label for label, count in enumerate(frequency.tolist()) if low <= count <= high}
        for name, value in naive.by_frequency(ranked, truth, chosen).items():
            assert part[name] == (None if np.isnan(value) else pytest.approx(value)), (name, low, high)


def test_an_interval_lies_around_its_metric(judged: Judged) -> None:
    """Bounds of 1,000 resamples of 60 documents: a deviation of about 5 points at a P@1 of 20."""
    metrics, intervals = judged.file("metrics.json"), judged.file("report.json")["intervals"]
    assert intervals.keys() == metrics.keys()
    for name, (low, high) in intervals.items():
        assert low < metrics[name] < high, name
        assert (low + high) / 2 == pytest.approx(metrics[name], abs=2), name


def test_the_examples_show_no_filtered_label(judged: Judged) -> None:
    rows, titles = judged.corpus.rows(TEST), judged.corpus.table("labels")["title"].to_list()
    uids = judged.corpus.table("documents", rows)["uid"].to_list()
    for example in judged.file("examples.json"):
        row = judged.left("fusion")[uids.index(example["uid"])]
        assert [answer["label"] for answer in example["predicted"]] == [titles[label] for label in row[:5]]
