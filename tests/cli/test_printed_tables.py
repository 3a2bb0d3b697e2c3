"""Tables that commands print are aligned, and a terminal shows them without wrapped lines."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from xc_core.cli.tables import metrics_table, show_leaderboard, show_metrics
from xc_core.metrics.calibration import calibration
from xc_core.metrics.leaderboard import COSTS, LEARNT, SPENT, group, markdown
from xc_core.metrics.names import TABLE


def row(recipe: str, figure: float, p_value: float | None) -> dict[str, Any]:
    figures = {**dict.fromkeys(TABLE, figure), "P_at_1_low": figure - 1, "P_at_1_high": figure + 1, "p_value": p_value}
    costs = {**dict.fromkeys(COSTS, 0.123456), **dict.fromkeys(SPENT, 12345.6)}
    given = {**dict.fromkeys(LEARNT, "train and validation"), "group": group(1.5), "machines": ["a Xeon, 1 thread"]}
    return {"recipe": recipe, **figures, **costs, **given}


ROWS = [row("a-recipe-with-a-long-name", 61.5, None), row("b", 5.25, 0.25)]
MARKDOWN = "# toy\n\n" + markdown(ROWS)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the lines of each printed table."""
    workspace = SimpleNamespace(open=lambda *_: SimpleNamespace(rows=pl.DataFrame(ROWS)))
    show_leaderboard(cast(Any, workspace), "toy")
    blocks = [block.splitlines() for block in capsys.readouterr().out.strip().split("\n\n")]
    assert (blocks[0], len(blocks[-1])) == (["# toy"], 1), "the title comes first, the explanation last"
    return [block for block in blocks if block[0].startswith("|")]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_no_line_of_a_table_is_wider_than_a_terminal_and_all_of_a_table_are_equal(printed: list[list[str]]) -> None:
    widths = [{len(line) for line in table} for table in printed]
    assert all(len(own) == 1 and max(own) <= 120 for own in widths), widths


def test_no_column_is_lost_and_each_table_names_the_recipes(printed: list[list[str]]) -> None:
    stored = [cells(line) for line in MARKDOWN.splitlines() if line.startswith("|")]
    assert len(printed) > 1
    shown = [[cells(line) for line in (table[0], *table[2:])] for table in printed]
    assert all([line[0] for line in table] == ["recipe", "a-recipe-with-a-long-name", "b"] for table in shown)
    for number, line in enumerate((stored[0], *stored[2:])):
        assert [cell for table in shown for cell in table[number][1:]] == line[1:]
    assert printed[0][3].startswith("| b                         |  5.25 |"), "names to the left, numbers to the right"
    assert [cell.endswith(":") for cell in cells(printed[0][1])][:2] == [False, True], "still a table of Markdown"


@pytest.mark.parametrize("name", ["label_words", "a-score-of-a-plug-in"])
def test_a_score_with_a_long_name_keeps_the_columns_of_an_evaluation(name: str) -> None:
    rows = (name, "sum")
    report = {
        "ablation": {row: dict.fromkeys(TABLE, 12.5) for row in rows},
        "candidates": dict.fromkeys(rows, "all scores"),
        "intervals": dict.fromkeys(TABLE, (12.0, 13.0)),
    }
    _, head, *lines = metrics_table(cast(Any, SimpleNamespace(report=report)), "toy").splitlines()
    assert {len(line) - len("   all scores") for line in lines[:2]} == {len(line) for line in lines[2:]}
    assert all(line.split()[1:] == [*["12.50"] * len(TABLE), "all", "scores"] for line in lines[:2])
    assert head.index("P@1") + len("P@1") == lines[0].index("12.50") + len("12.50")


def test_an_evaluation_has_a_line_on_probabilities_if_it_measured_any(capsys: pytest.CaptureFixture[str]) -> None:
    """That of a fusion without a dial has none; one of 0.2.0 does not have the field."""
    report = {
        "documents": 2,
        "ablation": {"fusion": dict.fromkeys(TABLE, 12.5)},
        "candidates": {"fusion": "all scores"},
        "intervals": dict.fromkeys(TABLE, (12.0, 13.0)),
    }
    found = calibration(np.array([[0.9], [0.6]], np.float32), np.array([[True], [False]]), 2)
    for more, last in (({"calibration": found}, "probability:"), ({"calibration": None}, "to "), ({}, "to ")):
        evaluation = SimpleNamespace(report=report | more, learnt=SimpleNamespace(words=dict))
        show_metrics(cast(Any, SimpleNamespace(open=lambda *_, own=evaluation: own)), "toy", "ngame")
        assert capsys.readouterr().out.splitlines()[-1].startswith(last)
