"""The artefacts of evaluation and leaderboard come back as they were written; plots are the same bytes every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xc_core import artifacts, manifests
from xc_core.data.history import TrainedOn
from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError, MissingError
from xc_core.metrics import plots
from xc_core.metrics.evaluation import FUSION, Evaluation, LearntFrom, write_evaluation
from xc_core.metrics.leaderboard import COSTS, LEARNT, SPENT, Leaderboard, group, markdown, write_leaderboard
from xc_core.metrics.names import TABLE
from xc_core.metrics.ranking import PerDocument, per_document
from xc_core.metrics.report import in_bins
from xc_core.shapes import Shortlist

TRUTH = LabelMatrix.from_pairs(np.arange(6), np.array([0, 1, 2, 0, 1, 2]), (6, 3))
EXAMPLES = [{"uid": "D1", "text": "a $b$", "predicted": [], "true": ["x"]}]


def figures(seed: int) -> PerDocument:
    random = np.random.default_rng(seed)
    ids = random.random((6, 3)).argsort(1).astype(np.int32)
    short = Shortlist(ids, -np.tile(np.arange(3, dtype=np.float32), (6, 1)))
    return per_document(short, TRUTH, np.array([1.0, 2.0, 3.5]), dict(in_bins(np.array([1, 4, 21]))))


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    kept = {FUSION: figures(0), "classifier": figures(1)}
    report = {"metrics": kept[FUSION].total(), "deciles": []}
    with artifacts.building(tmp_path / "evaluation", kind=Evaluation.kind) as build:
        write_evaluation(build, report, kept, EXAMPLES)
    return tmp_path / "evaluation"


def test_an_evaluation_comes_back_as_it_was_written(evaluation: Path) -> None:
    found = Evaluation.open(evaluation)
    assert found.metrics == found.report["metrics"] == figures(0).total()
    assert (found.stored.names, found.examples) == (["classifier", FUSION], EXAMPLES)
    assert found.report_file.is_file()
    assert artifacts.read_made(evaluation).facts["metrics"] == found.metrics


@pytest.mark.parametrize(("score", "seed"), [(FUSION, 0), ("classifier", 1)])
def test_the_figures_of_each_document_are_kept_for_each_score(evaluation: Path, score: str, seed: int) -> None:
    found = Evaluation.open(evaluation).figures(score)
    assert found is not None
    total = figures(seed).total()
    assert found.total() == pytest.approx({name: total[name] for name in found.num})
    assert {"P_at_1", "PSP_at_5", "nDCG_at_5", "R_at_10"} <= set(found.num)
    np.testing.assert_array_equal(found.num["P_at_1"], figures(seed).num["P_at_1"])


def test_a_score_that_was_not_evaluated_has_no_figures(evaluation: Path) -> None:
    assert Evaluation.open(evaluation).figures("class") is None
    assert Evaluation.open(evaluation).figures("lexical") is None


def test_a_changed_evaluation_is_refused(evaluation: Path, tmp_path: Path) -> None:
    (evaluation / "metrics.json").write_text("{}", "utf-8")
    with pytest.raises(CorruptError, match=r"metrics\.json"):
        Evaluation.open(evaluation)
    with pytest.raises(MissingError):
        Evaluation.open(tmp_path / "absent")


def row(recipe: str, value: float, **changes: Any) -> dict[str, Any]:
    intervals = {"P_at_1_low": value - 1, "P_at_1_high": value + 1, "PSP_at_5_low": 1.0, "PSP_at_5_high": 2.0}
    spent = {**dict.fromkeys(COSTS, 0.123456), **dict.fromkeys(SPENT, 1234.5), "train_seconds": 2469.0}
    learnt = {**dict.fromkeys(LEARNT, "train"), "group": group(2.7), "machines": ["a Xeon, 1 thread"]}
    figures = {**dict.fromkeys(TABLE, value), **intervals, **spent, **learnt}
    return {"recipe": recipe, **figures, "p_value": 0.25, **changes}


ROWS = [
    row("ngame", 61.234, p_value=None),
    row("astra", 60.0, p_value=0.0004, latency_p50_ms=None, encoder_seconds=None),
    row("new", 59.0, PSP_at_5=None, p_value=None, group=group(4.1)),
]


def test_a_leaderboard_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with artifacts.building(tmp_path / "leaderboard", kind=Leaderboard.kind) as build:
        write_leaderboard(build, ROWS, "toy $1")
    found = Leaderboard.open(tmp_path / "leaderboard")
    assert found.rows.to_dicts() == ROWS
    assert found.text == found.file.read_text("utf-8") == f"# toy $1\n\n{markdown(ROWS)}\n"
    assert [path.name for path in manifests.pictures(tmp_path / "leaderboard")] == ["leaderboard.png"]
    facts = artifacts.read_made(tmp_path / "leaderboard").facts
    best = {group(3): "ngame", group(5): "new"}
    assert facts == {"recipes": ["ngame", "astra", "new"], "best": best}


def test_the_table_shows_two_digits_of_metrics_and_three_of_costs() -> None:
    lines = markdown(ROWS).splitlines()
    assert lines[:2] == ["## Encoder trained on 2 to 4 times the train file", ""]
    assert lines[7:9] == ["## Encoder trained on 4 to 8 times the train file", ""]
    assert lines[-1].endswith("Measured on a Xeon, 1 thread.")
    head, ruler, *rows = (line for line in lines if line.startswith("|"))
    assert rows[2:4] == [head, ruler], "a table per group"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows[:2], rows[4])]
    assert cells[0][:2] == ["recipe", "P@1"]
    assert ruler.count("---") == len(cells[0])
    assert [line[1] for line in cells[1:]] == ["61.23", "60.00", "59.00"]
    at = {name: cells[0].index(name) for name in ("P@1 95 %", "p", "encoder seconds", "latency p50 ms", "PSP@5")}
    assert [line[at["P@1 95 %"]] for line in cells[1:]] == ["60.2 to 62.2", "59.0 to 61.0", "58.0 to 60.0"]
    assert [line[at["p"]] for line in cells[1:]] == ["best", "<0.001", "best"]
    assert [line[at["encoder seconds"]] for line in cells[1:]] == ["1,234", "-", "1,234"]
    assert [line[at["latency p50 ms"]] for line in cells[1:]] == ["0.123", "-", "0.123"]
    assert [line[at["PSP@5"]] for line in cells[1:]] == ["61.23", "60.00", "-"]


def test_a_reader_learns_how_to_compare_across_groups() -> None:
    """A baseline without an encoder stood alone, with the advice to compare within its group."""
    shown = markdown([row("bonsai", 50.0, p_value=None, group=group(0.0)), *ROWS])
    assert shown.startswith("## Encoder not trained\n")
    explained = shown.splitlines()[-1]
    assert "those that train none in a group of their own" in explained
    assert "xc compare tests two recipes" in explained and "p compares methods" in explained


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        (0.0, "encoder not trained"),
        (0.3, "encoder trained on 0.25 to 0.5 times the train file"),
        (1.0, "encoder trained on 0.5 to 1 times the train file"),
        (1.01, "encoder trained on 1 to 2 times the train file"),
        (4.0, "encoder trained on 2 to 4 times the train file"),
    ],
)
def test_groups_end_at_powers_of_two(passes: float, expected: str) -> None:
    assert group(passes) == expected


ENCODER = TrainedOn(train=1000, validation=200, label_texts=300, epochs=2.0)
ROWS_OF = TrainedOn(train=1000, epochs=1.0)


@pytest.mark.parametrize(
    ("changes", "part", "words"),
    [
        ({}, "encoder", "1,200 train and validation documents and 300 label texts, 2 epochs"),
        ({}, "classifier", "1,000 train documents, 1 epoch"),
        ({"joint": True}, "classifier", "trained with the encoder, then on 1,000 train documents, 1 epoch"),
        ({"joint": True, "classifier": replace(ROWS_OF, epochs=0.0)}, "classifier", "trained with the encoder"),
        ({"classifier": replace(ROWS_OF, epochs=0.0)}, "classifier", "not trained"),
        ({"scores": ("words", "parts"), "fitted_on": (1000, 200)}, "scores",
         "words, parts fitted on 1,200 train and validation documents"),
        ({"scores": ("words",), "fitted_on": (1000, 0)}, "scores", "words fitted on 1,000 train documents"),
        ({}, "fusion", "not fitted"),
        ({"dial": True}, "fusion", "not fitted; its dial is, on validation documents that no score has seen"),
        ({"fitted": True, "dial": True}, "fusion",
         "chosen and fitted on validation documents that no score has seen"),
        ({"fitted": True, "dial": True, "instead": "classifier"}, "fusion",
         "not used; classifier alone, with a dial, was chosen on validation documents that no score has seen"),
        ({"fitted": True, "instead": "classifier"}, "fusion",
         "not used; classifier alone was chosen on validation documents that no score has seen"),
    ],
)  # fmt: skip
def test_what_a_model_learnt_from_in_words(changes: dict[str, Any], part: str, words: str) -> None:
    learnt = replace(
        LearntFrom(encoder=ENCODER, classifier=ROWS_OF, joint=False, fitted=False, published=1200), **changes
    )
    assert learnt.words()[part] == words
    assert LearntFrom.from_dict(json.loads(json.dumps(asdict(learnt)))) == learnt
    assert ("scores" in learnt.words()) == bool(learnt.scores)
    assert learnt.passes == 3000 / 1200, "label texts count"


def labels() -> plots.LabelMap:
    random = np.random.default_rng(0)
    return plots.LabelMap(
        label_LD=random.standard_normal((30, 4)).astype(np.float32),
        doc_D=random.standard_normal(4).astype(np.float32),
        text="costs $5 河 and a title that is cut",
        titles={number: f"label ${number}" for number in (1, 2, 3, 12, 13)},
        positives=np.array([1, 2]),
        in_batch=np.arange(10),
        held=np.array([3]),
        missed=np.array([12, 13]),
    )


HISTORY = {"losses": [3.0, 2.0, 1.0], "epochs": [0.3, 0.6, 1.0], "refreshes": [{"epoch": 0.5}]}
NONE = {"losses": [], "epochs": [], "refreshes": []}
DRAWN: dict[str, Callable[[Path], None]] = {
    "training.png": lambda folder: plots.training_curves(folder, {"encoder": HISTORY, "classifier": NONE}, "toy"),
    "deciles.png": lambda folder: plots.deciles(
        folder, [{"from": 0, "to": 3, "P_at_5_points": 1.0, "recall_at_5": 2.0}], "toy"
    ),
    "label_map.png": lambda folder: plots.label_map(folder, labels(), "toy"),
    "leaderboard.png": lambda folder: plots.leaderboard(folder, ROWS, "toy"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_plot_is_the_same_bytes_every_time(name: str, tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        DRAWN[name](folder)
        found.append((folder / name).read_bytes())
    assert found[0] == found[1]
    assert found[0].startswith(b"\x89PNG")
