"""The model hub: if its server takes no connection, only files of this machine are asked for."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import transformers

from xc_core import pretrained
from xc_core.data import tokenizer
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.encoders.pretrained_model import pretrained_model
from xc_core.errors import MissingError, UnavailableError

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Return a listening socket that is the server of the hub; no proxy is set, and the hub is switched on."""
    for name in _PROXIES:
        monkeypatch.delenv(name, raising=False)
    listening = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return listening


def test_a_hub_is_away_if_its_server_takes_no_connection(listener: socket.socket) -> None:
    with listener:
        assert not pretrained.is_hub_away()
    assert pretrained.is_hub_away()


def test_the_wait_for_a_server_is_divided_among_its_addresses(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall that drops packets answers nothing: ten seconds for each address were longer than before."""
    waits: list[float] = []

    def connect(_: Any, timeout: float) -> socket.socket:
        waits.append(timeout)
        raise TimeoutError

    listener.close()
    monkeypatch.setattr(socket, "create_connection", connect)
    for addresses in (1, 2, 8):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=addresses, **__: [("address",)] * found)
        assert pretrained.is_hub_away()
    assert waits == [10, 5, 2]


@pytest.mark.parametrize(
    ("address", "port"), [("http://hub.example", 80), ("https://hub.example", 443), ("http://hub.example:8080", 8080)]
)
def test_a_server_is_asked_on_the_port_of_its_address(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, address: str, port: int
) -> None:
    listener.close()
    asked: list[Any] = []
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place, **_: asked.append(place) or [place])
    monkeypatch.setattr(socket, "create_connection", lambda place, timeout: asked.append(place) or nullcontext())
    assert not pretrained.is_hub_away()
    assert asked == [("hub.example", port)] * 2


def test_a_proxy_for_another_kind_of_server_is_not_used(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.close()
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert pretrained.is_hub_away(), "its address begins with http:"


def test_the_hub_is_not_asked_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that drops packets would cost ten seconds for a model that is here."""
    for module in ("data.tokenizer", "encoders.pretrained_model"):
        monkeypatch.setattr(f"xc_core.{module}.is_hub_away", lambda: pytest.fail("asked"))
    with pytest.raises(MissingError):
        tokenizer._from_transformers("own", tmp_path)
    with pytest.raises(MissingError):
        pretrained_model("own", tmp_path, 9)


def test_a_hub_that_is_switched_off_is_away(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with listener:
        assert pretrained.is_hub_away()


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_behind_a_proxy_no_connection_is_tried(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A proxy finds servers that this machine cannot."""
    listener.close()
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert not pretrained.is_hub_away()


@pytest.mark.parametrize("is_away", [True, False])
@pytest.mark.parametrize("part", ["tokenizer", "model"])
def test_nothing_is_asked_of_a_hub_that_is_away(monkeypatch: pytest.MonkeyPatch, part: str, is_away: bool) -> None:
    """Each question would be repeated for half a minute: 47 s for a mistyped name, more for a model that is here."""
    asked: list[bool] = []

    def ask(*_: Any, local_files_only: bool, **__: Any) -> Path:
        asked.append(local_files_only)
        raise OSError("no such model")

    monkeypatch.setattr("xc_core.data.tokenizer.is_hub_away", lambda: is_away)
    monkeypatch.setattr("xc_core.encoders.pretrained_model.is_hub_away", lambda: is_away)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", ask)
    monkeypatch.setattr("transformers.utils.cached_file", ask)
    with pytest.raises(UnavailableError, match=f"no {part} 'owner/model'"):
        tokenizer.load("owner/model") if part == "tokenizer" else build_encoder(EncoderConfig(name="owner/model"), 9, 0)
    assert asked == [is_away]


def test_every_file_of_a_model_is_asked_for_in_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = transformers.BertConfig(vocab_size=17, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                                    intermediate_size=8)  # fmt: skip
    transformers.BertModel(shape).save_pretrained(tmp_path)
    asked: dict[str, bool] = {}

    def found_here(what: str, load: Any) -> Any:
        def loaded(_: str, *given: Any, local_files_only: bool, **settings: Any) -> Any:
            asked[what] = local_files_only
            return load(tmp_path, *given, **settings)

        return loaded

    monkeypatch.setattr("xc_core.encoders.pretrained_model.is_hub_away", lambda: True)
    monkeypatch.setattr("transformers.utils.cached_file", found_here("file", lambda folder, name: folder / name))
    for kind in (transformers.AutoConfig, transformers.AutoModel):
        monkeypatch.setattr(kind, "from_pretrained", found_here(kind.__name__, kind.from_pretrained))
    build_encoder(EncoderConfig(name="owner/model", precision="fp32", frozen_layers=0), 17, 0)
    assert asked == {"file": True, "AutoConfig": True, "AutoModel": True}
