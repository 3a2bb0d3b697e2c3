"""The boundary for models of the Hugging Face library: kind, sizes and weights are checked before one is trained."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from xc_core.encoders.unallocated import unallocated
from xc_core.errors import DataError, XCError, bare, first_line, shown
from xc_core.pretrained import is_hub_away, locate, read_config, unusable

_SIZES: Final = {
    "hidden_size": 65_536,
    "num_attention_heads": 4096,
    "num_hidden_layers": 1024,
    "intermediate_size": 1 << 20,
    "vocab_size": 10_000_000,
    "max_position_embeddings": 10_000_000,
}
"""Largest sizes of a configuration; larger ones are mistakes that would take all memory."""
_ENCODER: Final = "an encoder-only model of texts, such as bert"
_ROUNDING: Final = 1e-4
"""Share of the largest state by which padding may change a state."""
_MOST_WEIGHT: Final = 1e9
"""Largest weight; a larger one is damage, and makes vectors of some texts overflow."""
_NOT_USED: Final = ("pooler.",)
"""Weights that may be absent, because the vector of a text comes from the last hidden states."""


def pretrained_model(name: str, place: Path | str, vocabulary_size: int) -> Any:
    """Return the encoder-only model of a folder or of a name on the hub, in fp32 with eager attention.

    Only safetensors are read, because a pickled checkpoint could run code; a model that brings code is refused.
    Raises MissingError for a folder without a model, DataError for one that is inconsistent, of another kind or with
    weights that do not fill it, UnavailableError if the hub does not have the model or cannot be reached.
    """
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        local = isinstance(place, Path) or is_hub_away()
        read_config(_config_file(place, local=local), name)
        shape = AutoConfig.from_pretrained(place, local_files_only=local, trust_remote_code=False)
        _check_shape(shape, name, vocabulary_size)
        _check_parameters(shape, place, name)
        with log_errors_only():  # its table of missing and unused weights: _check_weights refuses those that matter
            model, loading = AutoModel.from_pretrained(
                place,
                config=shape,
                dtype=torch.float32,
                attn_implementation="eager",
                use_safetensors=True,
                output_loading_info=True,
                local_files_only=local,
                trust_remote_code=False,
            )
    except (XCError, MemoryError):
        raise
    except Exception as error:  # transformers raises errors of many types for a wrong folder
        raise unusable("model", name, place, error, files="config.json and model.safetensors") from error
    _check_weights(model, loading, name)
    _check_bidirectional(model, name)
    _check_padding(model, name)
    return model


def num_layers(name: str) -> int | None:
    """Return the number of layers in the configuration of a model; None if it is not on this machine or unreadable.

    Its weights are not read, so nothing here says that they fill the layers.
    """
    layers = getattr(configuration(name), "num_hidden_layers", None)
    return layers if type(layers) is int and layers > 0 else None


def configuration(name: str) -> Any:
    """Return the configuration of a model; None if it is not on this machine or unreadable.

    A model on the hub is not downloaded.
    """
    from transformers import AutoConfig

    try:
        place = locate(name)
        read_config(_config_file(place, local=True), name)
        return AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except MemoryError:
        raise
    except Exception:  # transformers raises errors of many types; ``pretrained_model`` reports them
        return None


@contextmanager
def log_errors_only() -> Iterator[None]:
    """Let transformers log errors only, without warnings, for a while."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _config_file(place: Path | str, *, local: bool) -> Path:
    """Return config.json of a folder, or of a name on the hub, from which nothing is downloaded if ``local``."""
    from transformers.utils import cached_file

    if isinstance(place, Path):
        return place / "config.json"
    return Path(str(cached_file(place, "config.json", local_files_only=local)))


def _check_shape(shape: Any, name: str, vocabulary_size: int) -> None:
    """Raise DataError for a configuration of another kind of model, with impossible sizes or too few token ids."""
    kind = f"a model of type {bare(str(shape.model_type))}"
    if getattr(shape, "is_encoder_decoder", False) or getattr(shape, "is_decoder", False):
        raise _wrong(f"{kind}, which has a decoder", _ENCODER, name)
    sizes = {field: getattr(shape, field, None) for field in _SIZES}
    if sizes["vocab_size"] is None or sizes["hidden_size"] is None:
        raise _wrong(f"{kind}, which reads no tokens", _ENCODER, name)
    for field, size in sizes.items():
        if size is not None and not (type(size) is int and 1 <= size <= _SIZES[field]):
            raise _wrong(f"{field} = {shown(size)} in config.json", f"a whole number from 1 to {_SIZES[field]:,}", name)
    heads = sizes["num_attention_heads"]
    if heads and sizes["hidden_size"] % heads:
        found = f"hidden_size {sizes['hidden_size']} with {heads} heads in config.json"
        raise _wrong(found, "a width that the number of heads divides", name)
    if vocabulary_size > sizes["vocab_size"]:
        found = f"a tokenizer of {vocabulary_size:,} token ids for a model of {sizes['vocab_size']:,}"
        raise _wrong(found, "the tokenizer that the model was trained with", name)


def _check_parameters(shape: Any, place: Path | str, name: str) -> None:
    """Raise DataError for a local model with more parameters than its weights have bytes.

    transformers allocates parameters that have no weights before it reports them. Nothing is allocated or drawn here.
    """
    from transformers import AutoModel

    weights = sum(path.stat().st_size for path in place.glob("*.safetensors")) if isinstance(place, Path) else 0
    if not weights:
        return
    with unallocated():
        model = AutoModel.from_config(shape, trust_remote_code=False)
    named = model.named_parameters()
    parameters = sum(tensor.numel() for key, tensor in named if not key.startswith(_NOT_USED))
    if parameters > weights:
        found = f"a model of {parameters:,} parameters in config.json, and weights of {weights:,} bytes"
        raise _wrong(found, "model.safetensors that fill the model that config.json describes", name)


def _check_weights(model: Any, loading: dict[str, Any], name: str) -> None:
    """Raise DataError if weights are missing, of another shape, not finite, or of layers that the model lacks."""
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith(_NOT_USED))
    missing += sorted(str(key) for key in loading.get("mismatched_keys", ()))
    if missing:
        found = f"no weights for {len(missing)} tensors of the model, the first is {bare(str(missing[0]))}"
        raise _wrong(found, "model.safetensors that fill the model that config.json describes", name)
    if extra := _keys_of_missing_layers(model, loading):
        found = f"weights of {len(extra)} tensors of layers that the model lacks, the first is {bare(extra[0])}"
        raise _wrong(found, "a number of layers in config.json that is that of model.safetensors", name)
    for key, value in model.named_parameters():
        lowest, highest = (float(end) for end in value.detach().aminmax()) if value.numel() else (0.0, 0.0)
        if math.isnan(lowest) or math.isinf(lowest) or math.isinf(highest):
            raise _wrong(f"weights that are not finite, the first in {key}", "finite numbers", name)
        if max(-lowest, highest) > _MOST_WEIGHT:
            found = f"a weight of {max(-lowest, highest):.3g} in {key}"
            raise _wrong(found, f"weights of at most {_MOST_WEIGHT:.0e}, whose squares are finite in float32", name)


def _keys_of_missing_layers(model: Any, loading: dict[str, Any]) -> list[str]:
    """Return weights that the model does not use and that differ from its own in the number of a layer alone.

    A pooler and the head of a task are left out of a model rightly.
    """
    model_keys = {_unnumbered(key) for key in model.state_dict()}
    prefix = f"{model.base_model_prefix}."
    unused = map(str, loading["unexpected_keys"])
    return sorted(key for key in unused if _unnumbered(key.removeprefix(prefix)) in model_keys)


def _unnumbered(key: str) -> str:
    return re.sub(r"\.\d+(?=\.)", ".#", key)


def _check_bidirectional(model: Any, name: str) -> None:
    """Raise DataError if no last token of a short text changes the state of the first, as in a decoder.

    The attention of a decoder has weights of exactly 0 for later tokens, so equality is exact.
    """
    size = int(model.config.vocab_size)
    texts = ([size - 1, size // 2, last] for last in {0, 1 % size, size // 3, size - 1})
    states = [_states(model, name, text)[0] for text in texts]
    if all(torch.equal(state, states[0]) for state in states):
        raise _wrong(f"{_kind(model)}, a decoder: no token changes the vector of an earlier one", _ENCODER, name)


def _check_padding(model: Any, name: str) -> None:
    """Raise DataError if padding changes the states of a text, as in a model that does not read its attention mask.

    The vector of a text would depend on the texts beside it. Rounding changes states by about 1e-6 of the largest.
    """
    size, pad = int(model.config.vocab_size), getattr(model.config, "pad_token_id", None)
    text = [size - 1, size // 2, 1 % size]
    padding = [pad if isinstance(pad, int) and 0 <= pad < size else 0] * 2
    alone_TD, padded_TD = _states(model, name, text), _states(model, name, text, padding)
    if float((padded_TD - alone_TD).abs().max()) > _ROUNDING * float(alone_TD.abs().max()):
        raise _wrong(f"{_kind(model)}, whose vector of a text changes with padding", _ENCODER, name)


def _kind(model: Any) -> str:
    return f"a model of type {bare(str(model.config.model_type))}"


@torch.no_grad()
def _states(model: Any, name: str, ids: list[int], padding: list[int] | None = None) -> torch.Tensor:
    """Return the last hidden states of a text's tokens (T x D), with ``padding`` after them, which is masked.

    Raises DataError if the model fails on the text, or gives states that are not finite.
    """
    padding = padding or []
    ids_BT, mask_BT = torch.tensor([ids + padding]), torch.tensor([[1] * len(ids) + [0] * len(padding)])
    try:
        states: torch.Tensor = model.eval()(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state[0]
        states = states[: len(ids)]
    except MemoryError:
        raise
    except Exception as error:  # a model that reads something else than token ids raises errors of many types
        found = f"{_kind(model)}, which fails on a text of three tokens ({first_line(error)})"
        raise _wrong(found, _ENCODER, name) from error
    if not bool(torch.isfinite(states).all()):
        raise _wrong(f"{_kind(model)}, whose vectors are not finite", "weights as they were trained", name)
    return states


def _wrong(found: str, expected: str, name: str) -> DataError:
    return DataError(found, expected=expected, do="save the model again, or choose another encoder", where=bare(name))
