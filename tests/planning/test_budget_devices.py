"""Timings of a budget are those of a device: a GPU, or the processor of one machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from xc_core.chain import Workspace
from xc_core.planning import budget


def test_an_estimate_is_for_the_gpu_that_it_was_made_on(ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU, and each kind of GPU, have timings of their own in one project."""
    experiment, timed = ready.params.experiment("toy", "ngame"), list[str]()
    for name in ("", "one GPU", "another GPU", "one GPU", ""):
        seconds = {"encoding": 1.0, "scores": 1.0, "encoder": 1.0, "classifier": 1.0 + len(name)}
        device = SimpleNamespace(is_cpu=not name, in_words=lambda name=name: name)
        estimate = SimpleNamespace(seconds=lambda name=name, seconds=seconds: timed.append(name) or seconds)
        monkeypatch.setattr(budget, "Device", SimpleNamespace(chosen=lambda device=device: device))
        monkeypatch.setattr(budget, "_Estimate", SimpleNamespace(of=lambda *_, estimate=estimate: estimate))
        assert budget._cached_estimate(ready, experiment, again=False) == seconds
    assert timed == ["", "one GPU", "another GPU"]
