"""The facts of a corpus in words, for the report on a model, and the file that it is written to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from xc_core.chain import STAGES, Workspace
from xc_core.chain.registry import TRAIN_STAGES
from xc_core.chain.reports import check_made, data_card, followed, stale_note
from xc_core.errors import MissingError

IN_WORDS = [name for name in TRAIN_STAGES if STAGES[name].scope == "experiment"]
"""Some are plural: "a finished embeddings", "the scores is"."""


@pytest.mark.parametrize("stage", IN_WORDS)
def test_messages_about_a_stage_are_sentences_whatever_its_name(copied: Workspace, stage: str) -> None:
    made = copied.folder(stage, "toy", "ngame") / "made.json"
    made.write_text(json.dumps(json.loads(made.read_text()) | {"fingerprint": "of other settings"}))
    assert stale_note(copied, "toy", "ngame", stage).startswith(f"note: the stage {stage} of ngame is out of date (")
    made.unlink()
    with pytest.raises(MissingError) as caught:
        check_made(copied, stage, "toy", "ngame")
    assert caught.value.found == f"no {stage} of 'ngame' on toy"
    assert caught.value.expected == f"a recipe that has run the stage {stage}; none has yet"


def test_the_data_card_has_every_fact_of_a_corpus() -> None:
    facts = {
        "layout": "xc-json",
        "labels": 1234,
        "rows": {"train": 2000, "validation": 0, "test": 500},
        "pairs": {"train": 5001, "validation": 0},
        "filters": {"pairs": 1500, "source": "files"},
        "nearness": {"test": {"above_0.75": 0.125, "documents": 5000}, "validation": None},
        "allow": ["empty-labels", "unseen-labels"],
        "accepted": {"documents": {"empty-labels": 12}, "labels": {"unseen-labels": 1}},
        "source": {"trn.json": {"bytes": 2048, "sha256": "ab"}},
    }
    near = "12.5 % of 5,000 documents have a train document of nearly the same words"
    assert data_card(facts) == {
        "layout": "xc-json",
        "labels": "1,234",
        "train documents": "2,000, 2.50 labels each",
        "validation documents": "0",
        "test documents": "500",
        "filtered pairs": "1,500 (files)",
        "test near train": near,
        "accepted flaws": "empty-labels: 12 documents, unseen-labels: 1 label",
        "file trn.json": "2,048 bytes, SHA-256 ab",
    }


def test_a_link_stays_one_when_a_file_is_written_through_it(tmp_path: Path) -> None:
    link, pipe = tmp_path / "latest.html", tmp_path / "pipe"
    link.symlink_to("site.html")
    assert followed(link) == tmp_path / "site.html"
    (tmp_path / "site.html").touch()
    assert followed(link) == tmp_path / "site.html"
    os.mkfifo(pipe)
    assert followed(pipe) == pipe


def test_the_data_card_of_an_older_corpus_leaves_out_what_is_not_known() -> None:
    assert data_card({"rows": {"train": 2}, "filters": {"pairs": 0}, "allow": ["empty-text", "clean-text"]}) == {
        "layout": "unknown", "labels": "0", "train documents": "2", "accepted flaws": "empty-text, clean-text",
    }  # fmt: skip
