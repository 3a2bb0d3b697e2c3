"""What counts as the content of a corpus: counts, constants and fields do; how it was ingested does not."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.data.worlds import facts_of, read_world, small_world, write_world
from xc_core import artifacts
from xc_core.data.corpus import Corpus
from xc_core.data.propensity import PROPENSITY, inverse_propensity
from xc_core.data.splits import TRAIN


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return write_world(tmp_path / "world")


def test_corpus_json_holds_counts_constants_and_fields(world: Path) -> None:
    corpus = read_world(world, propensity="amazon", fields=("title",))
    assert json.loads((corpus.folder / "corpus.json").read_text()) == corpus.facts
    assert corpus.facts == {
        "documents": 72,
        "labels": 10,
        "rows": {split: len(corpus.rows(split)) for split in ("train", "validation", "test")},
        "pairs": {
            split: int(corpus.labels.rows(corpus.rows(split)).counts_N.sum())
            for split in ("train", "validation", "test")
        },
        "unseen_labels": 0,
        "propensity": {"A": 0.6, "B": 2.6},
        "fields": ["title"],
    }


def test_facts_for_people_include_the_content_and_how_it_was_made(world: Path) -> None:
    corpus = read_world(world, allow=("shared-texts",), validation_fraction=0.2)
    facts = facts_of(corpus)
    assert {name: facts[name] for name in corpus.facts} == corpus.facts
    more = {name: value for name, value in facts.items() if name not in corpus.facts}
    assert set(more) == {"layout", "source", "filters", "allow", "accepted", "validation_fraction", "split"}
    assert (more["layout"], more["allow"], more["validation_fraction"]) == ("xc-json", ["shared-texts"], 0.2)
    files = ["filter_labels_train.txt", "filter_labels_test.txt"]
    assert more["filters"] == {"source": "given", "pairs": 4, "files": files}


@pytest.mark.parametrize("settings", [{"allow": ("shared-texts",)}, {"layout": "xc-json"}, {"max_line_bytes": 9_999}])
def test_a_setting_that_changes_no_row_keeps_the_digest(world: Path, settings: dict[str, object]) -> None:
    """So a dataset that is ingested again with ``--allow shared-texts`` does not retrain anything."""
    assert read_world(world, **settings).digest == read_world(world).digest


@pytest.mark.parametrize(
    "settings",
    [{"validation_fraction": 0.5}, {"propensity": "wikipedia"}, {"fields": ("title",)}, {"filters": "none"}],
)
def test_a_setting_that_changes_the_content_changes_the_digest(world: Path, settings: dict[str, object]) -> None:
    assert read_world(world, **settings).digest != read_world(world).digest


def test_the_name_of_a_filter_file_is_not_content(tmp_path: Path) -> None:
    """The two file names of the XC text layout lead to the same corpus."""
    first, second = (write_world(tmp_path / name, "xc-text") for name in ("a", "b"))
    (second / "filter_labels_test.txt").rename(second / "tst_filter_labels.txt")
    assert read_world(first).digest == read_world(second).digest


def test_allows_is_true_for_the_kinds_of_the_ingest(world: Path) -> None:
    corpus = read_world(world, allow=("shared-texts", "empty-text"))
    assert corpus.allows("shared-texts") and corpus.allows("empty-text")
    assert not corpus.allows("empty-labels")
    assert not read_world(world).allows("shared-texts")


def test_nothing_is_allowed_if_the_record_of_the_ingest_is_missing(world: Path) -> None:
    corpus = read_world(world, allow=("shared-texts",))
    (corpus.folder / artifacts.MADE).unlink()
    assert not Corpus.open(corpus.folder).allows("shared-texts")


def test_wrong_schemas_names_the_tables_with_other_columns(world: Path) -> None:
    corpus = read_world(world)
    assert corpus.wrong_schemas() == []
    pairs = pq.read_table(corpus.folder / "pairs.parquet")
    pq.write_table(pairs.rename_columns(["document", "label"]), corpus.folder / "pairs.parquet")
    labels = pq.read_table(corpus.folder / "labels.parquet")
    pq.write_table(labels.drop_columns(["content"]), corpus.folder / "labels.parquet")
    assert corpus.wrong_schemas() == ["labels", "pairs"]


def test_weights_are_inverse_propensities_of_the_published_train_rows(world: Path) -> None:
    corpus = read_world(world, validation_fraction=0.5, propensity="wikipedia")
    frequency = np.zeros(10, np.int64)
    for row in small_world().train:
        frequency[row["target_ind"]] += 1
    expected = inverse_propensity(frequency, 60, PROPENSITY["wikipedia"])
    assert corpus.weights().tolist() == expected.tolist()
    assert len(corpus.rows(TRAIN)) < 60, "validation rows count too"


def test_validation_halves_are_disjoint_and_complete(world: Path) -> None:
    corpus = read_world(world, validation_fraction=0.5)
    first, second = corpus.validation_halves()
    assert len(first) and len(second)
    assert sorted([*first.tolist(), *second.tolist()]) == corpus.rows("validation").tolist()


def test_shared_counts_test_documents_that_also_appear_in_train(tmp_path: Path) -> None:
    world = small_world()
    world.test[0]["title"], world.test[5]["title"] = world.train[3]["title"], world.train[3]["title"]
    corpus = read_world(write_world(tmp_path / "copied", world=world), validation_fraction=0.3)
    assert corpus.shared("title", "content") == 2
    assert corpus.shared("uid") == 0


def test_a_shared_text_is_seen_in_another_unicode_form_and_a_uid_is_not(tmp_path: Path) -> None:
    world = small_world()
    for row, form in ((world.train[3], "NFC"), (world.test[0], "NFD")):
        for field in ("uid", "title", "content"):
            row[field] = unicodedata.normalize(form, f"kesäyö {field}")
    corpus = read_world(write_world(tmp_path / "forms", world=world))
    assert (corpus.shared("title", "content"), corpus.shared("uid")) == (1, 0)


def test_documents_without_text_share_none(tmp_path: Path) -> None:
    world = small_world()
    for document in (world.train[3], world.test[0], world.test[5]):
        document["title"] = document["content"] = ""
    world.test[1]["content"] = world.train[4]["content"] = "the same"
    world.test[1]["title"] = world.train[4]["title"] = ""
    corpus = read_world(write_world(tmp_path / "empty", world=world), allow=("empty-text",))
    assert corpus.shared("title", "content") == 1
