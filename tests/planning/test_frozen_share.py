"""The share of an encoding that frozen layers take is that of the layers which the encoder has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xc_core.planning.frozen import freezes_layers, frozen_share, passes
from xc_core.recipes import RECIPES
from xc_core.train.encoder_settings import EncoderSettings


def frozen(name: str, layers: int = 3) -> EncoderSettings:
    return RECIPES["dpr"].changed({"encoder": {"encoder": {"name": name, "frozen_layers": layers}}}).encoder


@pytest.mark.parametrize(
    ("config", "share"),
    [
        ({"model_type": "bert", "num_hidden_layers": 12}, 1 / 4),
        ({"model_type": "bert"}, 1 / 4),  # transformers has a default
        ({"model_type": "distilbert", "n_layers": 4}, 3 / 4),
        ({"model_type": "bert", "num_hidden_layers": 2}, 1),
        ({"model_type": "bert", "num_hidden_layers": "many"}, 1 / 2),  # refused when the encoder is built
    ],
)
def test_the_layers_of_a_folder_are_those_of_its_configuration(
    config: dict[str, Any], share: float, tmp_path: Path
) -> None:
    """Six were assumed of every encoder, so the plan of one of twelve layers counted twice the share."""
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    settings = frozen(str(tmp_path))
    assert frozen_share(settings) == pytest.approx(share)
    assert passes(settings) == pytest.approx(3 - 2 * share)
    assert frozen_share(frozen(str(tmp_path), 0)) == 0


@pytest.mark.parametrize("name", ["minilm", "somebody/not-downloaded", "/a/folder/that/is/not/there"])
def test_an_encoder_whose_configuration_is_not_known_counts_as_minilm(name: str) -> None:
    assert frozen_share(frozen(name)) == 1 / 2


def test_an_encoder_without_layers_has_none_that_are_frozen() -> None:
    assert not freezes_layers(frozen("bag"))
    assert frozen_share(frozen("bag")) == 0
