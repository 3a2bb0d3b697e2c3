"""Names of weights without the numbers of layers, by which weights of further layers are found."""

from __future__ import annotations

from xc_core.encoders import pretrained_model


def test_all_numbers_of_a_weight_are_left_out() -> None:
    assert pretrained_model._unnumbered("blocks.0.1.attention.12.bias") == pretrained_model._unnumbered(
        "blocks.3.20.attention.0.bias"
    )
    assert pretrained_model._unnumbered("blocks.0.1.attention") == "blocks.#.#.attention"
