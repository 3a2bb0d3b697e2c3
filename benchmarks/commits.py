"""A corpus with times, from any git repository: messages of commits, and the files and folders that they change.

``python -m benchmarks.commits REPOSITORY FOLDER`` writes it as JSON lines. ``xc ingest FOLDER --dataset NAME --split
time`` takes the last fifth as test documents; with ``--test 0.2`` they are in a table of their own, for other splits.
Files and folders come and go, so later documents have labels that no earlier one has.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from xc_core.visible import CONTROL

_FORMAT: Final = "%x01%H%x02%cI%x02%B%x03"
_SIGNED: Final = re.compile(
    r"^(Signed-off-by|Co-authored-by|git-svn-id|Reviewed-by)\b.*$", re.MULTILINE | re.IGNORECASE
)
MOST_FILES: Final = 60
"""A commit that changes more files is left out: its message says little about each."""


@dataclass(frozen=True)
class Commit:
    """A commit: its hash, when it was made (ISO 8601), its message, and the files and folders that it changes."""

    uid: str
    time: str
    text: str
    labels: tuple[str, ...]


def commits(repository: Path) -> list[Commit]:
    """Return the commits of a repository by time, without merges; labels that one commit alone has are left out."""
    found = sorted(_commits(repository), key=lambda commit: datetime.fromisoformat(commit.time))
    counts = Counter(label for commit in found for label in commit.labels)
    kept = ((commit, tuple(label for label in commit.labels if counts[label] > 1)) for commit in found)
    return [Commit(commit.uid, commit.time, commit.text, labels) for commit, labels in kept if labels]


def _commits(repository: Path) -> Iterator[Commit]:
    git = ["git", "-C", str(repository), "-c", "core.quotepath=false"]
    command = [*git, "log", "--no-merges", "--reverse", "--name-only", f"--format={_FORMAT}"]
    log = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8", "replace")
    for entry in log.split("\x01")[1:]:
        head, _, names = entry.partition("\x03")
        uid, time, message = head.split("\x02", 2)
        text = " ".join(CONTROL.sub(" ", _SIGNED.sub("", message)).split())
        files = [name for name in names.split("\n") if name]
        if text and 0 < len(files) <= MOST_FILES:
            yield Commit(uid, time, text, tuple(sorted({label for name in files for label in _places(name)})))


def _places(name: str) -> Iterator[str]:
    """Yield a file and the folders that it is in, these with a slash at the end."""
    parts = name.split("/")
    for end in range(1, len(parts)):
        yield f"{'/'.join(parts[:end])}/"
    yield name


def write(found: list[Commit], path: Path) -> None:
    """Write a table of documents as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for commit in found:
            row = {"uid": commit.uid, "time": commit.time, "text": commit.text, "labels": list(commit.labels)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


@click.command()
@click.argument("repository", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--first", type=int, help="Only so many of the first commits.")
@click.option(
    "--test", type=click.FloatRange(0, 1), default=0.0, help="Share of the last commits, written to test.jsonl."
)
def main(repository: Path, folder: Path, first: int | None, test: float) -> None:
    """Write the commits of REPOSITORY to FOLDER."""
    found = commits(repository)[:first]
    cut = len(found) - round(test * len(found))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.jsonl").unlink(missing_ok=True)
    write(found[:cut], folder / "train.jsonl")
    if test:
        write(found[cut:], folder / "test.jsonl")
    click.echo(f"{len(found):,} commits, {len({label for commit in found for label in commit.labels}):,} labels")


if __name__ == "__main__":
    main()
