"""Fingerprints: settings in use, code version, and the content of the inputs and model folders of a result.

The settings are also written to one file per stage. DVC compares these files, so it sees the same changes as ``xc``.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from xc_core import artifacts
from xc_core.canonical import canonical
from xc_core.chain.dataset import Partition
from xc_core.chain.registry import STAGES, Stage, versioned_stages
from xc_core.chain.workspace import Workspace
from xc_core.data.tokens import store_name
from xc_core.errors import ConfigError, MissingError, StorageError
from xc_core.params import dotted, in_use, plain
from xc_core.plugins import HasOutside, HasUnread


def resolved(workspace: Workspace, stage: Stage, partition: Partition) -> str:
    """Return the code version and the settings in use of a stage as JSON: the content of its settings file.

    Digests of local model folders follow.
    """
    content = {"code_version": stage.code_version, "settings": in_use(partition.settings(stage.name))}
    outside = outside_digests(workspace, stage, partition)
    recorded = workspace.made(stage.name, *partition.key).depends if None in outside.values() else {}
    digests = {part: recorded.get(part, "") if digest is None else digest for part, digest in outside.items()}
    return canonical(content | ({"outside": digests} if digests else {}))


def write_settings(workspace: Workspace, partition: Partition) -> None:
    """Write the settings file of every stage of a partition if its content differs.

    Without the dataset's folder nothing is written: if the folder was renamed, a new one would be in its way back.
    """
    dataset, recipe = partition.key
    if not workspace.home(dataset).is_dir():
        return
    for stage in versioned_stages("dataset" if recipe is None else "experiment"):
        path, content = workspace.settings_file(stage.name, dataset, recipe), resolved(workspace, stage, partition)
        if _text(path) != content:
            workspace.write(path, content)


def _text(path: Path) -> str | None:
    """Return the text of a settings file; None if there is none, which may have been deleted a moment ago."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.read_text("utf-8")
    return None


def inputs(stage: Stage, partition: Partition) -> tuple[str, ...]:
    """Return the inputs that a stage reads with these settings: those that it declares, without ``unread()`` ones.

    An M4 in random batches, for instance, does not depend on clusters.
    """
    settings = partition.settings(stage.name)
    unread = settings.unread() if isinstance(settings, HasUnread) else frozenset()
    return tuple(dep for dep in stage.deps if dep not in unread)


def input_folder(workspace: Workspace, dep: str, partition: Partition) -> Path:
    """Return the folder of an input; for the tokens, the store that the recipe's encoder reads.

    Raises ConfigError if the dataset is not tokenised for that encoder.
    """
    dataset, recipe = partition.key
    folder = workspace.folder(dep, dataset, recipe)
    name, listed = partition.tokenizer, partition.dataset.tokens.tokenizers
    if dep != "tokens" or name is None:
        return folder
    if name not in listed:
        raise ConfigError(
            f"an encoder whose tokenizer is {name!r}",
            expected=f"one whose tokenizer is among datasets.{dataset}.tokens.tokenizers: {', '.join(listed)}",
            do=f"add {name!r} there in params.yaml, then: xc run tokens --dataset {dataset}",
        )
    return folder / store_name(name)


def fingerprint(parts: dict[str, str], *, refresh: bool = False, extended: bool = False) -> str:
    """Return one hash over all parts; that of a refreshed or extended artefact differs.

    An extension encodes new texts with the encoder's own vocabulary, so of the tokens only ``same_cut`` matters.
    """
    if extended:
        parts = {name: digest for name, digest in parts.items() if name != "tokens"} | {"extended": "yes"}
    return content_hash(parts | ({"refresh": "yes"} if refresh else {}))


def same_cut(workspace: Workspace, partition: Partition) -> bool:
    """Return True if texts are cut now where they were cut for the encoder."""
    max_tokens = partition.dataset.tokens.max_tokens
    made = workspace.made("encoder", *partition.key)
    return bool(made.facts.get("max_tokens", max_tokens) == max_tokens)


def differing(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Return the names of the parts that differ."""
    return [name for name in new if old.get(name) != new[name]] + [name for name in old if name not in new]


def other_settings(made: artifacts.Made, settings: Any) -> list[str]:
    """Return the dotted names of settings whose value differs from that in the record of an artefact."""
    recorded = dotted(made.settings) if isinstance(made.settings, dict) else {}
    return [name for name, value in dotted(plain(settings)).items() if name in recorded and recorded[name] != value]


def only_inputs(names: list[str]) -> bool:
    """Return True if all of these parts are inputs, so that a refresh may ignore them."""
    return bool(names) and all(name in STAGES for name in names)


def source_digest(workspace: Workspace, dataset: str) -> str:
    """Return a hash over names and contents of a dataset's raw folder; files are read again only if one has changed.

    Raises MissingError if there is no folder.
    """
    folder = workspace.present_raw(dataset)

    def digest() -> str:
        files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
        return _files_digest(workspace, workspace.state / "source" / f"{dataset}.json", files)

    try:
        return artifacts.steady(folder, digest)  # another command may replace the dataset meanwhile
    except FileNotFoundError as error:  # or somebody deletes it
        raise MissingError(
            f"no file {error.filename} any more",
            expected="source files that stay while a command reads them",
            do=f"xc ingest PATH --dataset {dataset} (or `dvc pull`, if a remote holds it)",
        ) from error


def outside_digests(workspace: Workspace, stage: Stage, partition: Partition) -> dict[str, str | None]:
    """Return a digest of each model or tokenizer that a stage reads from a local folder, None for an absent one."""
    settings = partition.settings(stage.name)
    outside_files = settings.outside() if isinstance(settings, HasOutside) else {}
    caches = {part: workspace.state / "outside" / f"{store_name(part)}.json" for part in outside_files}
    return {
        part: _files_digest(workspace, caches[part], {p.name: p for p in files}) if files else None
        for part, files in outside_files.items()
    }


def _files_digest(workspace: Workspace, cache: Path, files: dict[str, Path]) -> str:
    """Return a hash over names and contents; files are read again only if size, date or inode of one has changed."""
    file_stats = {name: [p.stat().st_size, p.stat().st_mtime_ns, p.stat().st_ino] for name, p in files.items()}
    cached = readable(cache)
    if cached.get("facts") != file_stats:
        cached = {
            "facts": file_stats,
            "digest": content_hash([f"{name} {artifacts.sha256_file(p)}" for name, p in files.items()]),
        }
        with suppress(StorageError):  # a reader of a full or read-only disk goes on without the cache
            workspace.write(cache, json.dumps(cached))  # in ASCII: a name may not be UTF-8
    return str(cached["digest"])


def readable(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of the state; empty if there is none or it cannot be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def content_hash(content: Any) -> str:
    """Return a hash of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
