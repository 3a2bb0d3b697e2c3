"""Blocks whose texts are an Arrow column: the same checks as for lists of strings, without making the strings."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.data.worlds import write_world
from xc_core.data.checks import INK_LEADS, Allowed, check_block, has_control
from xc_core.data.formats import Block, Texts
from xc_core.errors import DataError
from xc_core.visible import CONTROL, INK

ALL = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
PIECES = [
    *"a éł",
    "",
    "\t",
    "\n",
    "\x7f",
    "\x85",
    "\x92",
    "\u00ad",
    "\u2013",
    "\u2028",
    "\u202e",
    "\u2066",
    "\u206a",
    "語",
]


def column(texts: Sequence[str], *, at: int = 0) -> Texts:
    """Return texts as a slice of a longer array that begins with ``at`` others."""
    return Texts(pa.array(["\x00other"] * at + [*texts, "\x00behind"], pa.string())[at : at + len(texts)])


def as_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def test_control_characters_are_found_in_bytes() -> None:
    wrong = [char for char in ALL if CONTROL.search(char)]
    assert len(wrong) > 40
    assert all(has_control(as_bytes(f"a{char}")) and has_control(as_bytes(char)) for char in wrong)
    assert not has_control(as_bytes("".join(char for char in ALL if not CONTROL.search(char))))


def test_first_bytes_of_ink_belong_to_characters_with_ink_only() -> None:
    marked = [char for char in ALL if INK_LEADS[char.encode()[0]]]
    assert len(marked) > 20_000
    assert all(map(INK.match, marked))


def test_texts_are_a_sequence_of_strings() -> None:
    texts = column(["a", "", "é"], at=3)
    assert [*texts] == ["a", "", "é"] and texts[2] == "é" and texts[-1] == "é" and texts[1:] == ["", "é"]
    content, starts = texts.utf8()
    assert (content.tobytes(), starts.tolist()) == ("aé".encode(), [0, 1, 1, 3])
    assert column([]).utf8()[1].tolist() == [0]


@pytest.mark.parametrize("allowed", [Allowed(), Allowed(empty_text=True)])
def test_columns_are_refused_as_lists_are(allowed: Allowed) -> None:
    draw = random.Random(5)
    outcomes = set()
    for _ in range(600):
        uids = [draw.choice(["a"] * 40 + PIECES) for _ in range(4)]
        titles, contents = ([draw.choice(["a", ""] * 30 + PIECES) for _ in range(4)] for _ in range(2))
        block = Block("f", 1, uids, titles, contents)
        arrow = Block("f", 1, column(uids, at=2), column(titles, at=2), column(contents, at=2))
        found = refusal(block, allowed)
        assert refusal(arrow, allowed) == found, block
        outcomes.add(found and found.split(" found ")[1][:8])
    assert len(outcomes) >= (3 if allowed.empty_text else 4), outcomes


def refusal(block: Block, allowed: Allowed) -> str | None:
    try:
        check_block(block, allowed, num_labels=None)
    except DataError as error:
        return str(error)
    return None


def test_the_ingest_of_json_does_not_import_pandas(tmp_path: Path) -> None:
    """pyarrow imports it for arrays from Python's values, if it is installed: 0.3 s and 40 MB."""
    folder = write_world(tmp_path / "world")
    code = (
        "import sys; from pathlib import Path; from xc_core import artifacts\n"
        "from xc_core.data.ingest import IngestConfig, ingest\n"
        "with artifacts.building(Path(sys.argv[2]), kind='corpus') as build:\n"
        "    ingest(Path(sys.argv[1]), build, IngestConfig())\n"
        "print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "corpus")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr
