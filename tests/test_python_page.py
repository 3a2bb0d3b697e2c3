"""The examples of docs/python.md run one after the other, as in a notebook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from xc_core.chain import Workspace
from xc_core.metrics.evaluation import Evaluation

PAGE = Path(__file__).resolve().parents[1] / "docs" / "python.md"


def test_the_examples_for_notebooks_run(trained: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    monkeypatch.chdir(tmp_path)
    notebook: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M):
        exec(re.sub(r'"quick(-supcon)?"', '"ngame"', block).replace('"mine"', '"toy"'), notebook)
    metrics = trained.open(Evaluation, "toy", "ngame").metrics
    assert dict(notebook["metrics"].select("metric", "percent").iter_rows()) == metrics
    assert json.loads((tmp_path / "leaderboard.json").read_text("utf-8"))[0]["recipe"] == "ngame"
    assert notebook["found"]["P_at_1"].points == 0, "the same recipe twice"
    assert {label.label for label in notebook["right"][0]} == set(notebook["true"])
