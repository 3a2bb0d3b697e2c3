"""A served model reads as much of a text as its encoder was given in training, which says if this is a part of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xc_core.chain import Workspace, run_stage
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.splits import TRAIN
from xc_core.data.tokens import Tokenised
from xc_core.encoders import TrainedEncoder
from xc_core.infer.predictor import Predictor

Edit = Callable[[Workspace, Any], None]


@pytest.mark.parametrize(("kept", "read"), [(2, 2), (510, 16)])
def test_an_encoder_answers_texts_as_it_encodes_those_of_the_dataset(
    workspace: Workspace, edit: Edit, lines: list[str], kept: int, read: int
) -> None:
    edit(workspace, {"datasets/toy/tokens/max_tokens": kept})
    changes = {"encoder": {"encoder": {"name": "bag", "width": 8, "max_length": 16}, "epochs": 0}}
    workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
    for stage in ("corpus", "tokens", "encoder", "embeddings"):
        run_stage(workspace, stage, "toy", None if stage in ("corpus", "tokens") else "ngame")
    corpus, rows = Corpus.open(workspace.folder("corpus", "toy")), np.arange(5)
    trained = TrainedEncoder.open(workspace.folder("encoder", "toy", "ngame"))
    asked: Any = Predictor(trained.tokenizer, trained.encoder, None, [], [])  # type: ignore[arg-type]
    found = asked.embed(corpus.texts_of("documents", rows))
    stored = Embeddings.open(workspace.folder("embeddings", "toy", "ngame")).documents_ND[rows]
    np.testing.assert_allclose(found, stored, atol=1e-6)
    assert trained.encoder.config.max_length == read
    assert any("the dataset keeps 2 token ids of a text" in line for line in lines) == (kept < 16)


def test_a_training_says_how_many_documents_it_reads_only_in_part(
    workspace: Workspace, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    rows = Corpus.open(workspace.folder("corpus", "toy")).rows(TRAIN)
    store = Tokenised.open(workspace.folder("tokens", "toy") / "wordpiece").documents
    special = len(store.prefix) + len(store.suffix)
    lengths = np.diff(store.offsets)[rows] + special
    longest = int(lengths.max())
    shorter = longest - 1  # most texts of the toy world are equally long
    for read, epochs, pretrained in (
        (shorter, 0.1, False), (longest, 0.1, False), (shorter, 0, False), (shorter, 0, True),
    ):  # fmt: skip
        lines.clear()
        if pretrained:  # known by its tokenizer
            monkeypatch.setattr("xc_core.stages.encoder.FROM_CORPUS", "that of no pretrained encoder")
        changes = {"encoder": {"encoder": {"name": "bag", "width": 8, "max_length": read}, "epochs": epochs}}
        workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
        run_stage(workspace, "encoder", "toy", "ngame", force=True)
        share = (lengths > read).mean()
        said = f"encoder: {share:.0%} of the train documents have more than {read} tokens, of which it reads the first"
        expected = read < longest and (epochs > 0 or pretrained)
        assert any(line.startswith(said) for line in lines) == expected, "random vectors that stay say nothing"
        assert (share > 0.1) == (read < longest), "the data can tell both cases"
