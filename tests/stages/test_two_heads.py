"""What stages do with vectors of two heads, one for label texts and one for classifier rows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.arrays import unit
from xc_core.artifacts import building
from xc_core.cluster import Clusters, balanced_clusters, theorem1
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokenizer import load
from xc_core.data.tokens import Tokenised, TokenStore
from xc_core.encoders import EncoderConfig, TrainedEncoder, build_encoder
from xc_core.recipes.settings import AuditSettings
from xc_core.stages import audit, embeddings

TEXTS = {
    "documents": ["river castle", "engine", "castle engine river"],
    "labels": ["river", "castle", "engine", "castle river"],
}


class Texts:
    """A corpus, or its tokens, with the first labels only."""

    def __init__(self, tokenizer: Any, labels: int) -> None:
        self.tokenizer, self.num_labels = tokenizer, labels
        self.texts = {"documents": TEXTS["documents"], "labels": TEXTS["labels"][:labels]}

    def side(self, name: str) -> TokenStore:
        return TokenStore.of_texts(self.texts[name], self.tokenizer)

    def label_texts(self, first: int) -> list[str]:
        return self.texts["labels"][first:]


def context(reads: dict[type, Any], **more: Any) -> Any:
    return SimpleNamespace(read=reads.__getitem__, **more)


def test_vectors_of_new_labels_are_those_of_a_run_with_all_labels(tmp_path: Path) -> None:
    tokenizer = load("wordpiece", [[text for texts in TEXTS.values() for text in texts]], 100)
    shape = EncoderConfig(name="bag", width=6, projection=6, heads=2, precision="fp32")
    trained = TrainedEncoder(build_encoder(shape, tokenizer.vocabulary_size, 0), tokenizer, {})
    for name, labels in (("all", 4), ("old", 2)):
        reads = {TrainedEncoder: trained, Tokenised: Texts(tokenizer, labels)}
        with building(tmp_path / name, kind="embeddings") as build:
            embeddings.run(context(reads, build=build))
    reads = {TrainedEncoder: trained, Corpus: Texts(tokenizer, 4)}
    with building(tmp_path / "extended", kind="embeddings") as build:
        embeddings.extend(context(reads, build=build, previous=tmp_path / "old"))
    expected, found = (Embeddings.open(tmp_path / name) for name in ("all", "extended"))
    assert found.heads == 2 and found.starts_LD.shape == (4, 12)
    for name in ("documents_ND", "labels_LD", "starts_LD"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-6, err_msg=name)
    document_D, label = found.documents_ND[1] * np.sqrt(np.float32(2)), TEXTS["labels"].index(TEXTS["documents"][1])
    first_D, second_D = np.split(document_D, 2)
    assert not np.allclose(first_D, second_D, atol=0.1)
    nothing = np.zeros_like(first_D)
    np.testing.assert_allclose(found.labels_LD[label], [*first_D, *nothing], atol=1e-3)
    np.testing.assert_allclose(found.starts_LD[label], [*nothing, *second_D], atol=1e-3)


def test_theorem_1_is_measured_on_the_head_of_label_texts() -> None:
    random, rows = np.random.default_rng(0), np.arange(5, 65)
    text_ND, row_ND = (unit(random.standard_normal((70, 4))).astype(np.float32) for _ in range(2))
    label_LD = unit(random.standard_normal((12, 4))).astype(np.float32)
    truth = LabelMatrix.from_pairs(np.arange(60), np.arange(60) % 12, (60, 12))
    clusters = balanced_clusters(text_ND[rows], 8, 0)
    stored = SimpleNamespace(among=lambda rows_N: clusters)
    both = SimpleNamespace(heads=2, documents_ND=np.concatenate([text_ND, row_ND], 1) / np.sqrt(np.float32(2)),
                           labels_LD=np.concatenate([label_LD, np.zeros_like(label_LD)], 1))  # fmt: skip
    settings = AuditSettings(radius=1.1, seed=3)
    found = audit._theorem(
        context({Clusters: stored}, settings=settings), both, audit.TrainedDocuments(rows, truth, truth, None)
    )
    expected = asdict(theorem1((text_ND[rows], label_LD), truth, truth, clusters, radius=1.1, seed=3))
    assert found == pytest.approx(expected, rel=1e-5)
