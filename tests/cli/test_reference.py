"""docs/commands.md shows every command as its help does."""

from __future__ import annotations

from tests.cli.reference import PAGE, page


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    """A changed command, option, default or help changes the page: python -m tests.cli.reference."""
    assert page() == PAGE.read_text("utf-8"), "run python -m tests.cli.reference"
