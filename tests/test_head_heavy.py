"""The synthetic head-heavy corpus is what it says: 20 labels per document, the most frequent in 35 % of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.head_heavy import HeadHeavy, main, write

CORPUS = HeadHeavy(documents=2000)
ROWS = CORPUS.rows()
COUNTS = Counter(label for _, _, labels in ROWS for label in labels)


def test_labels_have_the_frequencies_that_were_asked_for() -> None:
    shares = np.array([COUNTS[name] for name in CORPUS.names()]) / CORPUS.documents
    assert 18 < shares.sum() < 22
    assert abs(shares[0] - 0.35) < 0.03
    np.testing.assert_allclose(shares[1:100].mean(), CORPUS.share_L[1:100].mean(), rtol=0.05)


def topics(text: str) -> set[str]:
    return {word.split("w")[0] for word in text.split()}


def test_a_fifth_of_the_documents_says_nothing_about_their_labels() -> None:
    noise = [row for row in ROWS if len(topics(row[1])) > 1]
    assert abs(len(noise) / len(ROWS) - CORPUS.noise) < 0.03
    own = [len({label.split("w")[0] for label in labels} & topics(text)) > 0 for _, text, labels in ROWS]
    assert np.mean(own) > 0.8


def test_topics_tell_rare_labels_apart() -> None:
    rare = {name for name, count in COUNTS.items() if count < 50}
    pairs = [(text, label) for _, text, labels in ROWS for label in labels if label in rare and len(topics(text)) == 1]
    right = np.mean([label.split("w")[0] in topics(text) for text, label in pairs])
    assert right > 5 / CORPUS.topics


def test_what_is_written_is_the_same_every_time(tmp_path: Path) -> None:
    small = HeadHeavy(documents=50)
    write(small, tmp_path / "one")
    write(small, tmp_path / "two")
    text = (tmp_path / "one" / "train.csv").read_text("utf-8")
    assert text == (tmp_path / "two" / "train.csv").read_text("utf-8")
    assert text.splitlines()[0] == "uid,text,labels"


def test_a_question_for_help_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "FOLDER" in CliRunner().invoke(main, ["--help"]).output
    assert not list(tmp_path.iterdir())
