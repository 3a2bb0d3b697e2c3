"""What a changelog says of forgotten rows: their uids are hidden wherever an entry lists uids, and nothing else is."""

from __future__ import annotations

import pytest

from xc_core.canonical import canonical
from xc_core.chain.changelog import Kind, redacted


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
