"""Blocks of whole lines: what is UTF-8, and where one block ends, must not depend on how it is found."""

from __future__ import annotations

import gzip
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.data.formats import ReadOptions
from xc_core.data.formats.lines import blocks, is_utf8

EDGES = (0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0,
         0xF1, 0xF3, 0xF4, 0xF5, 0xFF)  # fmt: skip
"""The bytes at which the rules of UTF-8 change."""


def decodes(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_utf8_is_what_python_decodes() -> None:
    """All pairs of bytes, and all runs of three and four at which a rule changes, before, in and after ASCII text."""
    runs = [bytes(run) for run in product(range(256), repeat=2)]
    runs += [bytes(run) for run in product(EDGES, repeat=3)]
    runs += [
        bytes(run) for run in product((0xE0, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5), EDGES, (0x80, 0xBF, 0xC2), EDGES)
    ]
    for run in runs:
        assert is_utf8(run) == decodes(run), run
        assert is_utf8(b"eleven more" + run + b"a") == decodes(run + b"a"), run


@given(st.binary() | st.text().map(str.encode))
def test_random_bytes_are_utf8_if_python_decodes_them(content: bytes) -> None:
    assert is_utf8(content) == decodes(content)


@pytest.mark.parametrize("end", ["", ".gz"])
@settings(deadline=None, max_examples=60)
@given(lines=st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=30)), size=st.integers(1, 50))
def test_blocks_are_the_lines_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, end: str, lines: list[str], size: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / f"file{end}"
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if end else content)
    found = list(blocks(path, ReadOptions(block_bytes=size)))
    joined = b"".join(block for _, block in found)
    assert joined == content + (b"\n" if content and not content.endswith(b"\n") else b"")
    assert all(block.endswith(b"\n") for _, block in found)
    starts = [1 + joined[: sum(len(block) for _, block in found[:i])].count(b"\n") for i in range(len(found))]
    assert [number for number, _ in found] == starts
