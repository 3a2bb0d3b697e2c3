"""``xc serve``: what its options ask of the server. tests/serve/test_process.py starts it as a process."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from tests.cli.conftest import NGAME, Ended, Xc
from xc_core.chain import Workspace
from xc_core.infer.champion import in_folder
from xc_core.serve import server
from xc_core.serve.limits import Limits
from xc_core.serve.server import Address

LIMITS = Limits(
    body_bytes=1000, texts=7, text_chars=50, k=9, filter_labels=11, seconds=1.5, requests=13, queue=17, max_batch=5,
    max_wait_ms=0.0,
)  # fmt: skip
"""Each differs from its default."""


class Asked:
    """Runs ``xc serve`` on the model of the toy, and keeps what the server would have been started with."""

    def __init__(self, xc: Xc, monkeypatch: pytest.MonkeyPatch) -> None:
        self.xc, self.calls, self.threads = xc, list[Any](), list[int]()
        monkeypatch.setattr(server, "serve", lambda *asked: self.calls.append(asked))
        monkeypatch.setattr(torch, "set_num_threads", self.threads.append)

    def __call__(self, *options: object) -> Ended:
        return self.xc("serve", *NGAME, *options)


@pytest.fixture
def serve(xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(xc, monkeypatch)


def test_without_options_the_model_is_served_on_loopback_with_the_limits_of_the_library(
    serve: Asked, ready: Workspace
) -> None:
    assert serve().code == 0
    ((source, address, limits, poll_s),) = serve.calls
    assert (address, limits, poll_s, serve.threads) == (Address(), Limits(), 2.0, [])
    assert source().version == in_folder(ready.folder("model", "toy", "ngame")).version


def test_every_limit_has_its_option(serve: Asked) -> None:
    assert all(getattr(LIMITS, one.name) != getattr(Limits(), one.name) for one in fields(Limits))
    options = [(f"--{one.name.replace('_', '-')}", getattr(LIMITS, one.name)) for one in fields(Limits)]
    assert serve(*(part for option in options for part in option)).code == 0
    assert serve.calls[0][2] == LIMITS


def test_address_poll_and_threads_are_those_that_are_asked_for(serve: Asked) -> None:
    address = ("--host", "0.0.0.0", "--port", 0, "--allow-host", "a.example", "--allow-host", "b.example")
    assert serve(*address, "--poll", 0.5, "--threads", 3).code == 0
    assert serve.calls[0][1] == Address(host="0.0.0.0", port=0, allowed=("a.example", "b.example"))
    assert (serve.calls[0][3], serve.threads) == (0.5, [3])


@pytest.mark.parametrize(
    ("option", "value", "served"),
    [
        ("--poll", 0, False), ("--poll", 86_400, True), ("--poll", 86_401, False), ("--threads", -1, False),
        ("--threads", 1024, True), ("--threads", 1025, False),
    ],
)  # fmt: skip
def test_poll_and_threads_have_bounds(serve: Asked, option: str, value: int, served: bool) -> None:
    ended = serve(option, value)
    if served:
        assert (ended.code, len(serve.calls)) == (0, 1)
    else:
        ended.refused(64, f"{option} {value}", "fix the number")
        assert serve.calls == []
