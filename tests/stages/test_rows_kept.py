"""The stage classifier: label texts as documents, and rows that a refresh must not keep."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import polars as pl
import pytest

from tests.chain.toy import Edit
from tests.conftest import open_corpus
from xc_core import artifacts, manifests
from xc_core.chain import Workspace, run_stage
from xc_core.classifiers import LabelTables, TableConfig
from xc_core.data.folds import FINAL, Fold
from xc_core.data.history import TrainedOn
from xc_core.data.labels import LabelMatrix
from xc_core.data.names import row_labels
from xc_core.errors import MovedError
from xc_core.losses import DecoupledSoftmax
from xc_core.sampling import Random
from xc_core.stages import classifier
from xc_core.train.classifier import ClassifierSettings, TableData


def data_of(settings: ClassifierSettings, folder: Path, joint_LD: Any = None, *, logits: bool = False) -> TableData:
    """Return the training data of three documents with three labels."""
    truth = LabelMatrix.from_pairs(np.array([0, 1, 2, 3]), np.array([2, 0, 1, 2]), (4, 3))
    filters = LabelMatrix.from_pairs(np.array([1]), np.array([2]), (4, 3))
    vectors = SimpleNamespace(documents_ND=np.eye(4, dtype=np.float32), labels_LD=np.full((3, 4), 0.5, np.float32))
    vectors.starts_LD = vectors.labels_LD
    corpus = SimpleNamespace(labels=truth, filters=filters, num_labels=3, rows=lambda split: np.array([1, 2, 3]))
    inputs: Any = classifier.FoldInputs(corpus, vectors, joint_LD, logits)  # type: ignore[arg-type]
    context: Any = SimpleNamespace(settings=settings, build=SimpleNamespace(path=folder))
    return classifier._data(context, inputs, Fold(FINAL, False))


def test_with_augment_every_label_text_is_one_more_document_of_its_label(tmp_path: Path) -> None:
    data = data_of(ClassifierSettings(augment=True, order=Random()), tmp_path)
    np.testing.assert_array_equal(data.doc_ND, [*np.eye(4)[1:], *np.full((3, 4), 0.5)])
    assert [data.documents.truth.row(doc).tolist() for doc in range(6)] == [[0], [1], [2], [0], [1], [2]]
    assert [data.documents.filters.row(doc).tolist() for doc in range(6)] == [[2], [], [], [], [], []]


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("logits", [True, False])
def test_only_rows_trained_with_the_encoder_whose_length_counts_are_logits(
    logits: bool, unit: bool, tmp_path: Path
) -> None:
    """Text vectors are no logits: scaled as those are, a training would begin with rows that are too short."""
    settings = ClassifierSettings(order=Random(), table=TableConfig(unit=unit), loss=DecoupledSoftmax(temperature=0.25))
    data = data_of(settings, tmp_path, np.ones((3, 4), np.float32) if logits else None, logits=logits)
    assert data.factor == (0.25 if logits and not unit else 1.0)


def test_rows_that_learn_from_label_texts_record_how_many(copied: Workspace, edit: Edit) -> None:
    own = {"augment": True, "epochs": 1.0, "order": {"kind": "random", "batch_size": 16}}
    edit(copied, {f"experiments/toy_ngame/stages/classifier/{name}": value for name, value in own.items()})
    run_stage(copied, "classifier", "toy", "ngame")
    tables = LabelTables.open(copied.folder("classifier", "toy", "ngame"))
    assert TrainedOn.read(tables.history, TrainedOn(train=0)).label_texts == open_corpus(copied).num_labels


def test_without_epochs_label_texts_as_documents_change_no_byte(copied: Workspace, edit: Edit) -> None:
    """The setting is not in use then, so the artefact is up to date with either."""
    digests = []
    for augment in (False, True):
        own = {"augment": augment, "epochs": 0.0, "order": {"kind": "random", "batch_size": 16}}
        edit(copied, {f"experiments/toy_ngame/stages/classifier/{name}": value for name, value in own.items()})
        run_stage(copied, "classifier", "toy", "ngame", force=True)
        digests.append(manifests.read_manifest(copied.folder("classifier", "toy", "ngame")).digest())
    assert digests[0] == digests[1]


def test_a_refresh_does_not_keep_rows_of_other_folds(copied: Workspace, edit: Edit) -> None:
    """Rows of a refit have seen validation documents, on which scores without refit are fused."""
    edit(copied, {"experiments/toy_ngame/stages/classifier/refit": False})
    with pytest.raises(MovedError, match=r"classifier\.refit"):
        run_stage(copied, "classifier", "toy", "ngame", refresh=True)


@pytest.mark.parametrize("refit", [True, False])
def test_a_refresh_keeps_rows_of_the_same_folds_or_more(refit: bool) -> None:
    """Rows that did not learn from validation documents are not those of settings that do, and the other way round."""
    halves = [Fold(f"half-{half}", refit=True, half=half) for half in (0, 1)]
    final, other = Fold(FINAL, refit=refit), Fold(FINAL, refit=not refit)
    classifier._check_same_folds([final], [final])
    classifier._check_same_folds([halves[0], final], [*halves, final])
    for wanted, have in (([final], [other]), ([*halves, final], [halves[0], final])):
        with pytest.raises(MovedError, match=r"classifier\.refit"):
            classifier._check_same_folds(wanted, have)


def test_a_refresh_does_not_keep_rows_of_another_width() -> None:
    rows_LD, starts_LD = np.ones((2, 7), np.float32), np.ones((2, 4), np.float32)
    old, learnt_L = pl.Series([0, 1]), np.array([True, True])
    with pytest.raises(MovedError, match="rows of width 7 and label vectors of width 4"):
        classifier._kept_rows(rows_LD, starts_LD, old, learnt_L, unit=True)
    for width in (4, 5):  # one more: the bias
        kept_LD = np.arange(2 * width, dtype=np.float32).reshape(2, width)
        np.testing.assert_array_equal(classifier._kept_rows(kept_LD, starts_LD, old, learnt_L, unit=False), kept_LD)


@pytest.mark.parametrize(
    ("was_trained", "before", "both"), [(True, "same", True), (True, "another", False), (False, "same", False)]
)
def test_rows_learnt_from_what_a_kept_encoder_did(
    was_trained: bool, before: str, both: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder that earlier rows had, if it was trained, learnt from their train documents."""
    new, old = Mock(), SimpleNamespace(learnt=lambda: "older")
    monkeypatch.setattr(classifier, "Learnt", SimpleNamespace(of=lambda corpus: new))
    monkeypatch.setattr(LabelTables, "open", lambda folder: old)
    monkeypatch.setattr(manifests, "read_manifest", lambda folder: SimpleNamespace(digest=lambda: "same"))
    made = SimpleNamespace(depends={"encoder": before})
    monkeypatch.setattr(artifacts, "read_made", lambda folder: made)
    context: Any = SimpleNamespace(inputs={"encoder": tmp_path}, previous=tmp_path)
    found: Any = classifier._learnt(context, None, SimpleNamespace(was_trained=was_trained))  # type: ignore[arg-type]
    assert found is (new.with_train_of.return_value if both else new)
    assert new.with_train_of.call_args_list == [call("older")] * both


def with_labels(names: str) -> Any:
    """Return a stand-in for a corpus whose labels have these letters as uids and texts."""
    table = pl.DataFrame({"uid": list(names)})
    return SimpleNamespace(table=lambda side: table, label_texts=lambda: list(names))


@pytest.mark.parametrize("trained_labels", ["A", "AB", "ABCD", "BAC", "ABD", None])
def test_rows_that_were_trained_with_the_encoder_for_other_labels_are_refused(trained_labels: str | None) -> None:
    def joint_rows(labels: str | None) -> Any:
        names = None if labels is None else row_labels(with_labels(labels))
        trained: Any = SimpleNamespace(rows_LD=np.ones((len(labels or "ABC"), 4)), row_labels=names)
        return classifier._joint_rows(trained, with_labels("ABC"))

    assert joint_rows("ABC").shape == (3, 4)
    with pytest.raises(MovedError, match=r"3 labels, and rows trained along with the encoder for \d others"):
        joint_rows(trained_labels)
