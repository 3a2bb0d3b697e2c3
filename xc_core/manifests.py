"""The manifest of an artefact: name, size and SHA-256 of each file, with a digest of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from xc_core.canonical import canonical
from xc_core.errors import CorruptError, MissingError, bare

MANIFEST: Final = "manifest.json"
FORMAT: Final = 2
"""Version of the manifest's own layout."""
_OF_DATASET: Final = ("corpus", "tokens", "leaderboard")
"""Kinds of artefacts that are made once per dataset; the others have a folder per recipe."""
_CHECKSUM: Final = "digest"
"""Key of the manifest's own digest."""


@dataclass(frozen=True)
class Manifest:
    """The content of an artefact: its kind, and size and SHA-256 of each file."""

    kind: str
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    def to_file(self) -> str:
        """Return the content of ``manifest.json``: the manifest with its own digest, so that damage to it is seen."""
        return canonical({**json.loads(self.to_json()), _CHECKSUM: self.digest()})

    def digest(self) -> str:
        """Return one SHA-256 of the manifest: equal digests mean equal content."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the manifest as text; the same content gives the same bytes."""
        return canonical({"kind": self.kind, "format": self.format, "files": self.files})

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(int(file["bytes"]) for file in self.files.values())


def read_manifest(folder: Path, kind: str = "") -> Manifest:
    """Return the manifest of the artefact at ``folder``, unverified; ``kind`` names the artefact in an error.

    Raises MissingError if there is no artefact, CorruptError if its manifest cannot be read.
    """
    path, do = folder / MANIFEST, how_to_make(kind, folder)
    try:
        manifest, stated = _parsed(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:  # or it is being deleted
        raise MissingError(f"no artefact at {folder}", expected=f"a folder with {MANIFEST}", do=do) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = f"an unreadable {path} ({type(error).__name__}: {error})"
        raise CorruptError(found, expected="JSON with kind, format and files", do=do) from error
    if manifest.format != FORMAT:
        raise CorruptError(f"format {manifest.format} in {path}", expected=f"format {FORMAT}", do=do)
    if stated != manifest.digest():
        found = f"{path}, which has changed since it was written" if stated else f"no digest in {path}"
        raise CorruptError(found, expected="the digest that it states of itself", do=do)
    return manifest


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[Manifest, str]:
    """Return the manifest of a text, and the digest that it states. A command reads the same text many times."""
    content = json.loads(text)
    files = {_checked_name(name): MappingProxyType(_checked_entry(entry)) for name, entry in content["files"].items()}
    manifest = Manifest(str(content["kind"]), MappingProxyType(files), content["format"])
    manifest.digest()  # raises UnicodeEncodeError for half a character, which JSON may have
    return manifest, content.get(_CHECKSUM, "")


def _checked_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return size and hash of a file; raise TypeError for other types."""
    size, sha256 = entry["bytes"], entry["sha256"]
    if type(size) is not int or not isinstance(sha256, str):
        raise TypeError("bytes that are no number, or sha256 that is no text")
    return {"bytes": size, "sha256": sha256}


def _checked_name(name: str) -> str:
    """Return the name of a file in an artefact; raise ValueError if it leads outside of it."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
        raise ValueError(f"the file name {bare(name)}")
    return name


def how_to_make(kind: str, folder: Path) -> str:
    """Return the advice to rebuild the artefact at ``folder``; its place in a project says of which dataset it is."""
    stage, parts, options = kind or folder.name, folder.parts, ""
    above = parts[: len(parts) - 1 - parts[::-1].index(stage)] if stage in parts else ()
    match above:
        case (*_, "data", dataset) if stage in _OF_DATASET:
            options = f" --dataset {dataset}"
        case (*_, "data", dataset, recipe) if stage not in _OF_DATASET:
            options = f" --dataset {dataset} --recipe {recipe}"
    command = f"xc run {stage if kind or options else 'STAGE'} --force"
    return f"rebuild it: {command}{options or ', with its --dataset (and --recipe)'}; or `dvc pull` from a remote"


def pictures(folder: Path) -> list[Path]:
    """Return the plots of an artefact."""
    return [folder / name for name in read_manifest(folder).files if name.endswith(".png")]
