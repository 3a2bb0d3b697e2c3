"""Compare a chain with its golden figures, or renew them: ``python -m tests.golden.compare``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.golden.wordnet_slice import figures, run_chain
from tests.naive import metrics as naive
from xc_core.chain import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TEST

FOLDER: Final = Path(__file__).parent
PLAIN, FILTERED = FOLDER / "wordnet_slice.json", FOLDER / "wordnet_filtered.json"
LOSS_SHARE: Final = 0.001


def golden(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def corpus_of(workspace: Workspace) -> Corpus:
    return Corpus.open(workspace.folder("corpus", "slice"))


def positives_and_weights(corpus: Corpus) -> tuple[list[set[int]], list[float]]:
    """Return the positives of each test document, and the weight of each label in the PSP metrics."""
    truth = corpus.labels.rows(corpus.rows(TEST))
    train = corpus.published_train()
    weight = naive.inverse_propensity(train.frequency_L().tolist(), len(train), *corpus.propensity)
    return [set(truth.row(i).tolist()) for i in range(len(truth))], weight


def one_document(corpus: Corpus) -> dict[str, float]:
    """Return the most that one document can add to each metric: its labels all come first, other documents miss."""
    truth, weight = positives_and_weights(corpus)
    best = [sorted(own, key=lambda label: -weight[label]) for own in truth]
    alone = [[row if at == i else [] for at, row in enumerate(best)] for i in range(len(best))]
    found = [naive.metrics(ranked, truth, weight) for ranked in alone]
    return {name: max(one[name] for one in found) for name in found[0]}


def assert_golden(workspace: Workspace, path: Path) -> None:
    """Counts are exact, losses within a thousandth, each metric within what one document can add to it."""
    expected, found = golden(path), figures(workspace)
    assert found["counts"] == expected["counts"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=LOSS_SHARE)
    limits = one_document(corpus_of(workspace))
    assert found["metrics"].keys() == expected["metrics"].keys() == limits.keys()
    for name, value in expected["metrics"].items():
        assert found["metrics"][name] == pytest.approx(value, abs=1.000001 * limits[name]), name


def renew() -> None:
    """Run both chains and save their figures as the golden ones."""
    torch.set_num_threads(1)
    for path in (PLAIN, FILTERED):
        with tempfile.TemporaryDirectory() as folder:
            found = figures(run_chain(Path(folder), filtered=path == FILTERED))
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    renew()
