"""The latency of an evaluation is that of the encoder that answers in a packed model: its median and 99 %."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
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


def test_the_median_and_the_99th_percentile_of_some_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    times = [float(number) for number in range(101)]
    monkeypatch.setattr(evaluation, "latencies_ms", lambda own, texts: asked.append(texts) or times)
    context: Any = SimpleNamespace(settings=SimpleNamespace(latency_queries=3), costs={})
    corpus: Any = SimpleNamespace(texts_of=lambda side, rows: rows.tolist())
    predictor: Any = None
    evaluation._latency(context, predictor, corpus, np.array([5, 2, 9, 1]))
    assert asked == [[5, 2, 9]]
    assert context.costs == {"latency_p50_ms": 50.0, "latency_p99_ms": 99.0}
