"""The latency of an evaluation is that of the encoder that answers in a packed model."""

from __future__ import annotations

import copy

import pytest

from xc_core.chain import Workspace, run_stage
from xc_core.devices import Device
from xc_core.encoders import Encoder
from xc_core.encoders.bag import BagEncoder
from xc_core.stages import evaluation


def test_texts_are_timed_with_the_encoder_that_answers(copied: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Encoder] = []
    timed: list[Encoder] = []
    monkeypatch.setattr(BagEncoder, "without_gradients", lambda own: made.append(copy.deepcopy(own)) or made[-1])
    monkeypatch.setattr(evaluation, "latencies_ms", lambda own, texts: timed.append(own.encoder) or [1.0] * len(texts))
    devices: list[Device] = []
    monkeypatch.setattr(BagEncoder, "on", lambda own, device: devices.append(device) or own)
    run_stage(copied, "evaluation", "toy", "ngame", force=True)
    assert devices == [Device.chosen()]
    assert [id(one) for one in timed] == [id(one) for one in made]
    assert len(timed) == 1
