"""The examples of docs/add-a-method.md keep the contracts of their parts, as a user who copies them is told to test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.conftest import ROOT

pytestmark = pytest.mark.chain

PAGE = ROOT / "docs" / "add-a-method.md"
PARTS = ("SoftMargin", "Popular", "ByLabel", "Plain")
"""The classes of the page whose contracts cover every registered part."""
KINDS = ("soft-margin", "popular", "by-label", "plain", "bm25")
"""Their kinds, and that of the score to which the page links."""


def test_the_parts_of_the_page_keep_their_contracts_and_the_loss_its_twin(tmp_path: Path) -> None:
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    loss, twin, *_ = code
    heads = next(block for block in code if block.startswith("import json"))
    parts = [block for block in code if any(f"\nclass {name}(" in block for name in PARTS[1:])]
    assert len(parts) == len(PARTS) - 1
    (tmp_path / "soft_margin.py").write_text(loss, "utf-8")
    (tmp_path / "parts_of_the_page.py").write_text("\n\n".join(["import soft_margin", heads, *parts]), "utf-8")
    (tmp_path / "test_twin.py").write_text(twin, "utf-8")
    selected = " or ".join(("twin", *KINDS, *PARTS, "Bm25"))
    plugins = ("-p", "parts_of_the_page", "-p", "tests.plugins.bm25")
    command = [sys.executable, "-m", "pytest", *plugins, "-rp", "-k", selected]
    done = subprocess.run(
        [*command, "tests/contracts", "tests/losses/test_bounds.py", str(tmp_path / "test_twin.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        assert re.search(rf"^PASSED tests/contracts/.*\[(.+-)?{kind}[-\]]", done.stdout, re.M), kind
