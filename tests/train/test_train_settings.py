"""Settings of M1 and M4: which combinations are refused, and which settings cannot change a result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from xc_core.classifiers import BiasConfig, TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.encoders.pooling import Pooling
from xc_core.errors import ConfigError, UsageError
from xc_core.losses import Bce, DecoupledSoftmax
from xc_core.params import changed, in_use
from xc_core.sampling import Clustered, Importance, InBatch, Mined, Random, Stored, StoredClusters
from xc_core.train.classifier import ClassifierSettings
from xc_core.train.encoder import EncoderTask
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import SCORERS, ByBoth, ByRow, ByText
from xc_core.train.optim import OptimConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"negatives": Mined(search_in="rows")}, "a search in rows without a table"),
        ({"negatives": Importance(search_in="rows"), "epochs": 0.0}, "a search in rows without a table"),
        ({"negatives": Mined(), "scorer": ByRow()}, "a search in label texts that nothing encodes"),
        ({"order": StoredClusters()}, "the order 'stored-clusters'"),
        ({"negatives": Stored()}, "the negatives 'stored'"),
        ({"encoder": EncoderConfig(heads=2)}, "heads 2 with the scorer 'label-text'"),
        ({"encoder": EncoderConfig(heads=2), "scorer": ByRow()}, "heads 2 with the scorer 'row'"),
    ],
)
def test_settings_of_an_encoder_that_do_not_fit_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderSettings(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"negatives": Mined(search_in="rows"), "scorer": ByRow()},
        {"negatives": Mined(search_in="rows"), "scorer": ByBoth()},
        {"negatives": Mined(), "scorer": ByBoth()},
        {"negatives": Mined(), "scorer": ByRow(), "augment": True},
        {"negatives": Importance(hard=0, search_in="rows")},
        {"encoder": EncoderConfig(heads=2), "scorer": ByBoth()},
        {"encoder": EncoderConfig(heads=2), "epochs": 0.0},
    ],
)
def test_an_encoder_may_search_in_texts_it_encodes_and_rows_it_trains(settings: dict[str, Any]) -> None:
    EncoderSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"augment": True}, "augment with the order 'stored-clusters'"),
        ({"augment": True, "order": Random(), "negatives": Stored()}, "augment with the negatives 'stored'"),
    ],
)
def test_settings_of_a_classifier_that_do_not_fit_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClassifierSettings(**settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scorer": {"share": 0.5}}, r"encoder\.scorer\.share.*\n.*a setting of the scorer 'label-text': cache"),
        ({"scorer": {"kind": "row", "cache": True}}, r"encoder\.scorer\.cache.*\n.*the scorer 'row': rows"),
        ({"scorer": "text"}, "scorer 'text'"),
    ],
)
def test_a_setting_of_another_scorer_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(EncoderSettings(), changes, "encoder")


def test_a_scorer_is_written_as_its_kind_and_settings() -> None:
    assert SCORERS.names() == ["label-text", "row", "text-and-row"]
    written = {"scorer": {"kind": "text-and-row", "share": 0.25, "loss": {"kind": "bce", "bias": 3}}, "loss": "bce"}
    found = changed(EncoderSettings(loss=DecoupledSoftmax()), written, "encoder")
    assert found == EncoderSettings(scorer=ByBoth(share=0.25, loss=Bce(bias=3.0)), loss=Bce())


def test_without_epochs_the_settings_of_the_training_are_not_in_use() -> None:
    given = {"order": Random(), "negatives": InBatch(positives=3), "loss": Bce(), "scorer": ByRow(),
             "optim": OptimConfig(lr=0.5), "encoder": EncoderConfig(frozen_layers=3)}  # fmt: skip
    one = EncoderSettings(epochs=0.0, augment=True, refit=True, cache=True, **given)  # type: ignore[arg-type]
    assert in_use(one) == in_use(EncoderSettings(epochs=0.0))
    assert in_use(one) != in_use(EncoderSettings(epochs=0.0, seed=1))
    parts = {"order": Clustered(), "negatives": InBatch(), "loss": Bce(), "bias": BiasConfig(lr=0.1)}
    table = TableConfig(lr=0.5, decay=0.5, weight_decay=0.5, optimiser="sgd", precision="bf16")
    numbers = {"warmup": 0.5, "dropout": 0.5, "average": 0.5, "seed": 7}
    other = ClassifierSettings(epochs=0.0, table=table, augment=True, **parts, **numbers)  # type: ignore[arg-type]
    assert in_use(other) == in_use(ClassifierSettings(epochs=0.0))
    assert in_use(ClassifierSettings(dropout=0.5)) != in_use(ClassifierSettings())


def test_how_many_documents_are_enough_matters_only_to_a_refit() -> None:
    few, many = (ClassifierSettings(enough=enough) for enough in (1, 9))
    assert in_use(few) == in_use(many)
    assert in_use(ClassifierSettings(enough=1, refit=True)) != in_use(ClassifierSettings(enough=9, refit=True))


@pytest.mark.parametrize(("scorer", "joint"), [(ByText(), False), (ByRow(), True), (ByBoth(), True)])
def test_joint_means_that_a_table_is_trained_along(scorer: Any, joint: bool) -> None:
    assert EncoderSettings(scorer=scorer).joint is joint
    assert not EncoderSettings(scorer=scorer, epochs=0.0).joint


def test_rows_of_a_training_without_a_table_are_refused(encoder_task: Any) -> None:
    task: EncoderTask = encoder_task()
    for rows in (task.vectors.rows, task.vectors.released):
        with pytest.raises(UsageError, match="without a table"):
            rows()


def test_settings_that_an_encoder_family_does_not_read_are_not_in_use() -> None:
    bag, transformer = EncoderConfig(name="bag"), EncoderConfig(name="minilm")
    assert in_use(bag) == in_use(replace(bag, frozen_layers=3, pooling=Pooling.LAST))
    assert in_use(bag) != in_use(replace(bag, width=32))
    assert in_use(transformer) == in_use(replace(transformer, width=32))
    assert in_use(transformer) != in_use(replace(transformer, frozen_layers=3))


@pytest.mark.parametrize("name", ["wordpiece", "transformer", "", " "])
def test_a_name_that_is_no_encoder_is_refused(name: str) -> None:
    """They name a tokenizer, a family of encoders and nothing."""
    with pytest.raises(ConfigError, match=r"encoder: found name .*\n  expected: an encoder: bag, minilm, a folder"):
        changed(EncoderSettings(), {"encoder": {"name": name}}, "")
