"""What a changelog says of forgotten rows: their uids are hidden wherever an entry lists uids, and nothing else is.

Also what is not one of its entries, and one that is damaged.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from xc_core.canonical import canonical
from xc_core.chain.changelog import Kind, last, redacted
from xc_core.errors import CorruptError


@pytest.mark.parametrize("part", ["documents", "labels", "moved"])
def test_every_list_of_uids_is_redacted(part: str) -> None:
    entry = {"what": "update", "number": 3, part: ["A", "B"]}
    assert redacted(entry, {"A"}) == entry | {part: ["(forgotten)", "B"]}


def test_a_word_of_an_entry_that_is_also_a_uid_stays() -> None:
    entry = {"what": "update", "moved": ["update"]}
    assert redacted(entry, {"update"}) == {"what": "update", "moved": ["(forgotten)"]}


def test_the_stored_names_of_kinds_stay() -> None:
    """Changelogs of earlier releases hold them."""
    stored = ["replace", "settings", "update", "forget", "labels"]
    assert [canonical({"what": kind}) for kind in Kind] == [canonical({"what": name}) for name in stored]


def test_files_of_others_are_no_entries_and_a_damaged_entry_is_named(tmp_path: Path) -> None:
    """macOS writes ``._NAME`` beside each file on a disk of another system."""
    folder = tmp_path / "changes"
    folder.mkdir()
    entry = {"number": 2, "what": "update", "corpus": {}, "documents": {}, "labels": {}}
    (folder / "0002.json").write_text(canonical(entry))
    for name in ("._0002.json", "0003 (copy).json"):
        (folder / name).write_bytes(b"\0\x05")
    assert last(tmp_path / "corpus") == entry
    for damaged in ("{", "", "[]", "null", '{"number": 3}'):
        (folder / "0003.json").write_text(damaged)
        with pytest.raises(CorruptError, match=r"0003\.json .*\n.*\n  do this:  restore the file, or delete it"):
            last(tmp_path / "corpus")
