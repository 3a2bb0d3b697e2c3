"""Where a registered model comes from: tags for people, and files from which it can be made again."""

from __future__ import annotations

import getpass
import json
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Final

from ruamel.yaml import YAML

import xc_core
from assets import links
from xc_core import git
from xc_core.artifacts import Made, read_made
from xc_core.chain import Workspace
from xc_core.chain.extension import EXTENDED_FROM, EXTENDED_TO
from xc_core.chain.kept import REFRESHED_FROM
from xc_core.chain.registry import STAGES
from xc_core.confidential import why_confidential
from xc_core.errors import MissingError
from xc_core.manifests import read_manifest

FOLDER: Final = "origin"
"""Folder of these files in the MLflow run."""
DIFF: Final = "changes.diff"
ARTEFACTS: Final = "artefacts.json"
KEPT_FROM: Final = "kept_from"
"""Digests of earlier artefacts of the stage, of which this one kept parts, the oldest first. Up to 0.2.0 there are none
for a refreshed or extended artefact."""
_EDITED: Final = ("params.yaml", "dvc.yaml", "dvc.lock", "constraints.txt")
"""Files that runs edit, or that say what a run does; recorded whole, in git or not, unless they may hold a secret."""


@dataclass(frozen=True)
class Origin:
    """Tags of a version, and files by name."""

    tags: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Contents; bytes that are not UTF-8 are surrogates, as ``git`` returns them."""


def origin(workspace: Workspace, dataset: str, recipe: str, dagster_run: str = "") -> Origin:
    """Return the origin of the packed model of an experiment; ``dagster_run`` is empty on the command line."""
    code, raw = git.project_checkout(workspace.root), workspace.data / dataset / "raw.dvc"
    corpus = workspace.folder("corpus", dataset)
    files, left_out = _read_edited(workspace.root, [*_EDITED, raw.relative_to(workspace.root).as_posix()])
    tags = {
        "git": code.commit,
        "git_changed": replace(code, left_out={**left_out, **code.left_out}).changes,
        "dagster_run": dagster_run or "none, made on the command line",
        **_pages(dagster_run, dataset, recipe),
        "made_by": person(workspace.root),
        "data": read_manifest(corpus).digest(),
        "data_dvc": _md5(raw),
        "xc": xc_core.__version__,
    }
    files |= {DIFF: code.diff} if code.diff else {}
    files[ARTEFACTS] = json.dumps(_artefacts(workspace, dataset, recipe), indent=1)
    files["environment.txt"] = "\n".join(sorted({f"{d.name}=={d.version}" for d in metadata.distributions()})) + "\n"
    return Origin(tags, files)


def _read_edited(root: Path, names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the contents of the files that exist, and the reason for each that is left out as it may hold a secret."""
    contents = {name: (root / name).read_bytes() for name in names if (root / name).is_file()}
    secret = {name: why for name, content in contents.items() if (why := why_confidential(name, content))}
    public = {name: content for name, content in contents.items() if name not in secret}
    return {name: content.decode("utf-8", "surrogateescape") for name, content in public.items()}, secret


def _pages(dagster_run: str, dataset: str, recipe: str) -> dict[str, str]:
    """Return the pages of a Dagster run and of the asset that it made, if their address is known."""
    pages = {"dagster_run_url": links.dagster_run(dagster_run)}
    if dagster_run:
        pages["dagster_asset_url"] = links.dagster_asset("model", f"{dataset}|{recipe}")
    return {tag: page for tag, page in pages.items() if page is not None}


def person(root: Path) -> str:
    """Return who works here: name and mail of git, else the name of the account."""
    name, mail = (git.setting(root, f"user.{key}") for key in ("name", "email"))
    if not name:
        try:
            return getpass.getuser()
        except (KeyError, OSError):  # an account without a name, as in a container
            return "unknown"
    return f"{name} <{mail}>" if mail else name


def _md5(raw: Path) -> str:
    """Return DVC's hash of the raw folder."""
    if not raw.is_file():
        return "not in DVC"
    outs = (YAML(typ="safe").load(raw.read_text("utf-8")) or {}).get("outs") or [{}]
    return str(outs[0].get("md5", "not in DVC"))


def _artefacts(workspace: Workspace, dataset: str, recipe: str) -> dict[str, dict[str, object]]:
    """Return digest, fingerprint and settings of every artefact of the experiment."""
    artefacts: dict[str, dict[str, object]] = {}
    for name in STAGES:
        folder = workspace.folder(name, dataset, recipe)
        try:
            digest = read_manifest(folder).digest()
        except MissingError:
            continue
        made = read_made(folder)
        facts: dict[str, object] = {"digest": digest, "fingerprint": made.fingerprint, "settings": made.settings}
        artefacts[name] = facts | _kept(made)
        if STAGES[name].needs_source:
            artefacts[name]["source"] = made.facts.get("source")
    return artefacts


def _kept(made: Made) -> dict[str, object]:
    """Return what happened to an artefact after its training, and the digests of those that it was made from.

    The last one is the one that was in its place before.
    """
    extended_from, refreshed_from = made.facts.get(EXTENDED_FROM) or [], made.facts.get(REFRESHED_FROM)
    kept_from = extended_from or ([refreshed_from] if refreshed_from else [])
    facts = {"refreshed": made.refreshed, "extended": bool(extended_from), KEPT_FROM: kept_from}
    facts[EXTENDED_TO] = made.facts.get(EXTENDED_TO) or []
    return {fact: value for fact, value in facts.items() if value}
