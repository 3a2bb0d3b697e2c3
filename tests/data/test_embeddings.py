"""The embeddings artefact: what is written is what is opened, mapped without changing files; damage is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xc_core import artifacts
from xc_core.data.embeddings import Embeddings, EmbeddingsWriter
from xc_core.errors import CorruptError, MissingError
from xc_core.shapes import F32

DOCUMENTS = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = -np.arange(6, dtype=np.float32).reshape(2, 3)
STARTS = LABELS + np.float32(0.5)


def write(folder: Path, starts: F32 | None = None) -> Path:
    """Write the artefact as the stage does."""
    with artifacts.building(folder, kind=Embeddings.kind) as build:
        writer = EmbeddingsWriter(build)
        for side, vectors in (("documents", DOCUMENTS), ("labels", LABELS)):
            writer.allocate(side, *vectors.shape)[:] = vectors
        if starts is not None:
            writer.starts(starts)
        writer.finish(1 if starts is None else 2)
    return folder


def test_vectors_come_back(tmp_path: Path) -> None:
    opened = Embeddings.open(write(tmp_path / "embeddings"))
    assert opened.documents_ND.tolist() == DOCUMENTS.tolist()
    assert opened.labels_LD.tolist() == LABELS.tolist()
    assert (opened.heads, opened.width) == (1, 3)
    assert opened.documents_ND.dtype == opened.labels_LD.dtype == np.float32


def test_with_one_head_rows_start_at_the_label_vectors(tmp_path: Path) -> None:
    opened = Embeddings.open(write(tmp_path / "embeddings"))
    assert opened.starts_LD is opened.labels_LD
    assert not (tmp_path / "embeddings" / "starts.npy").exists()


def test_with_two_heads_rows_start_at_vectors_of_their_own(tmp_path: Path) -> None:
    opened = Embeddings.open(write(tmp_path / "embeddings", STARTS))
    assert opened.heads == 2
    assert opened.starts_LD.tolist() == STARTS.tolist()
    assert opened.labels_LD.tolist() == LABELS.tolist()


def test_writing_into_opened_vectors_does_not_change_the_files(tmp_path: Path) -> None:
    """The arrays are mapped copy-on-write, so that torch accepts them without a copy."""
    folder = write(tmp_path / "embeddings")
    opened = Embeddings.open(folder)
    assert not opened.documents_ND.flags.owndata, "the vectors are mapped, not loaded"
    opened.documents_ND[0, 0] = 99.0
    assert Embeddings.open(folder).documents_ND.tolist() == DOCUMENTS.tolist()


def test_facts_describe_the_shapes(tmp_path: Path) -> None:
    facts = artifacts.read_made(write(tmp_path / "embeddings", STARTS)).facts
    assert facts == {"documents": {"rows": 4, "width": 3}, "labels": {"rows": 2, "width": 3}, "heads": 2}


@pytest.mark.parametrize("wrong", [DOCUMENTS.astype(np.float64), DOCUMENTS.ravel(), DOCUMENTS.astype(np.float16)])
def test_vectors_of_another_type_or_shape_are_refused(tmp_path: Path, wrong: np.ndarray) -> None:
    with artifacts.building(tmp_path / "embeddings", kind=Embeddings.kind) as build:
        np.save(build.path / "documents.npy", wrong)
        np.save(build.path / "labels.npy", LABELS)
        EmbeddingsWriter(build).finish(1)
    with pytest.raises(CorruptError, match=r"documents\.npy") as caught:
        Embeddings.open(tmp_path / "embeddings")
    assert caught.value.found.startswith(f"{wrong.dtype} of shape {wrong.shape}")
    assert caught.value.expected == "float32 of shape (N, D)"
    assert "xc run embeddings --force" in caught.value.do


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "embeddings")
    data = bytearray((folder / "labels.npy").read_bytes())
    data[-1] ^= 1
    (folder / "labels.npy").write_bytes(data)
    with pytest.raises(CorruptError, match=r"labels\.npy, whose content has changed"):
        Embeddings.open(folder)


def test_missing_or_other_artefacts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no artefact"):
        Embeddings.open(tmp_path / "absent")
    with artifacts.building(tmp_path / "other", kind="clusters"):
        pass
    with pytest.raises(CorruptError, match="kind 'clusters'"):
        Embeddings.open(tmp_path / "other")
