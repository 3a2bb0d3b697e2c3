"""The corpus of a git repository: what a commit changes are its labels, and the last commits are held out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from click.testing import CliRunner

from benchmarks.commits import MOST_FILES, commits, main
from tests.data.worlds import read_world


def commit(folder: Path, day: int, message: str, *names: str, time: str = "12:00:00+02:00") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{message}\n")
    moment = f"2026-01-{day:02}T{time}"
    settings = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings |= {"GIT_COMMITTER_DATE": moment, "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z"}
    for command in (["add", "-A"], ["commit", "-qm", message]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, env=os.environ | settings)


def repository(folder: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    commit(folder, 1, "A first change\n\nMore of it\n\nSigned-off-by: a", "a/b/c.txt", "alone.txt")
    commit(folder, 2, "Too many", "d é.txt", *(f"many/{number}.txt" for number in range(MOST_FILES + 1)))
    commit(folder, 4, "Ähnlich", "a/b/c.txt", "d é.txt")
    commit(folder, 4, "Later, by an earlier clock", "a/f.txt", "d é.txt", time="13:00:00+14:00")
    commit(folder, 5, "Only once", "nowhere.txt")
    return folder


def test_labels_are_files_and_folders_of_at_least_two_commits(tmp_path: Path) -> None:
    found = commits(repository(tmp_path / "repository"))
    assert [(each.time[:10], each.text, each.labels) for each in found] == [
        ("2026-01-01", "A first change More of it", ("a/", "a/b/", "a/b/c.txt")),
        ("2026-01-04", "Later, by an earlier clock", ("a/", "d é.txt")),
        ("2026-01-04", "Ähnlich", ("a/", "a/b/", "a/b/c.txt", "d é.txt")),
    ]


def test_it_is_ingested_and_split_by_time(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, [str(repository(tmp_path / "repository")), str(tmp_path / "commits")])
    assert (ended.exit_code, ended.output) == (0, "3 commits, 4 labels\n")
    allow = ("unseen-labels",)
    corpus = read_world(tmp_path / "commits", split="time", test_fraction=0.4, validation_fraction=0.5, allow=allow)
    texts = dict(corpus.table("documents").select("split", "title").iter_rows())
    assert texts == {
        "train": "A first change More of it",
        "validation": "Later, by an earlier clock",
        "test": "Ähnlich",
    }


def test_the_last_commits_are_a_test_table(tmp_path: Path) -> None:
    for first, train, test in ((3, 2, 1), (2, 1, 1)):
        folder = tmp_path / str(first)
        options = ["--test", "0.4", "--first", str(first)]
        assert CliRunner().invoke(main, [str(repository(tmp_path / f"r{first}")), str(folder), *options]).exit_code == 0
        counts = [len((folder / f"{name}.jsonl").read_text().splitlines()) for name in ("train", "test")]
        assert counts == [train, test]
    assert "Ähnlich" in (tmp_path / "3" / "test.jsonl").read_text()
    again = CliRunner().invoke(main, [str(tmp_path / "r3"), str(tmp_path / "3")])
    assert again.exit_code == 0 and not (tmp_path / "3" / "test.jsonl").exists(), "an earlier table would be read"
