"""Writes dvc.yaml from the stage registry; compares the registry, Dagster's assets and dvc.yaml.

DVC compares the manifests of inputs, which hold the hashes of all files, and the settings file of each stage, so it
sees the same changes as ``xc``. The DVC stages ``settings`` and ``dataset-settings`` write the settings files.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from xc_core.chain.names import SETTINGS
from xc_core.chain.registry import STAGES, Stage
from xc_core.manifests import MANIFEST

HEAD: Final = """\
# Written from the stage registry (xc_core/chain/registry.py) by `python -m pipelines.graph`; a test compares the two.
# Addresses: corpus@<dataset>, encoder@<dataset>_<recipe>. Outs persist: `dvc repro` must not delete a good model.
# Settings files hold what a stage's result depends on besides its inputs; a manifest holds the hashes of all its files.
"""
_DATASET: Final = "${key}"
_EXPERIMENT: Final = "${item.dataset}"


def settings_entries() -> dict[str, Any]:
    """Return the two DVC stages that write settings files: of datasets and of experiments."""
    return {
        "dataset-settings": _foreach(
            "datasets",
            cmd=f"xc settings --dataset {_DATASET}",
            deps=["${item.source}"],
            params=[f"datasets.{_DATASET}"],
            out=f"data/{_DATASET}/{SETTINGS}",
        ),
        "settings": _foreach(
            "experiments",
            cmd=f"xc settings --dataset {_EXPERIMENT} --recipe ${{item.recipe}}",
            deps=["${item.source}"],
            params=[f"experiments.{_DATASET}"],
            out=f"data/{_EXPERIMENT}/${{item.recipe}}/{SETTINGS}",
        ),
    }


def _foreach(entries: str, *, cmd: str, deps: list[str], params: list[str], out: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"cmd": cmd, "deps": deps}
    entry |= {"params": params} if params else {}
    entry["outs"] = [{out: {"persist": True}}]
    return {"foreach": f"${{{entries}}}", "do": entry}


def stage_entry(stage: Stage) -> dict[str, Any]:
    """Return the entry of one stage in dvc.yaml."""
    per_dataset = stage.scope == "dataset"
    dataset = _DATASET if per_dataset else _EXPERIMENT
    flags = f"--dataset {dataset}" + ("" if per_dataset else " --recipe ${item.recipe}")
    folder = f"data/{dataset}" if per_dataset else f"data/{dataset}/${{item.recipe}}"
    deps = [f"{folder}/{SETTINGS}/{stage.name}.json"]
    deps += [f"data/{dataset}/raw"] if stage.needs_source else []
    deps += [f"{_folder_read(STAGES[dep], stage, dataset)}/{MANIFEST}" for dep in stage.deps]
    return _foreach(
        "datasets" if per_dataset else "experiments",
        cmd=f"xc run {stage.name} {flags}",
        deps=deps,
        params=[],
        out=_folder(stage, dataset),
    )


def _folder_read(dep: Stage, reader: Stage, dataset: str) -> str:
    """Return the folder of ``dep`` that ``reader`` reads; of the tokens it is the store of the recipe's tokenizer."""
    own_store = dep.name == "tokens" and reader.scope == "experiment"
    return _folder(dep, dataset) + ("/${item.tokens}" if own_store else "")


def _folder(stage: Stage, dataset: str) -> str:
    parent = f"data/{dataset}" if stage.scope == "dataset" else f"data/{dataset}/${{item.recipe}}"
    return f"{parent}/{stage.name}"


def dvc_yaml() -> str:
    """Return the content of dvc.yaml."""
    stages = settings_entries() | {s.name: stage_entry(s) for s in STAGES.values() if s.versioned}
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    yaml.dump({"stages": stages}, out)
    return HEAD + out.getvalue()


def dagster_edges() -> set[tuple[str, str]]:
    """Return (upstream, downstream) of every edge of Dagster's asset graph."""
    from assets.stages import ASSETS

    return {
        (parent.to_user_string(), key.to_user_string())
        for asset in ASSETS
        for key, parents in asset.asset_deps.items()
        for parent in parents
    }


def registry_edges() -> set[tuple[str, str]]:
    """Return (upstream, downstream) of every edge of the registry."""
    return {(dep, stage.name) for stage in STAGES.values() for dep in stage.deps}


def differences(root: Path) -> list[str]:
    """Return what does not agree, one sentence each; a project that does not use DVC needs no dvc.yaml."""
    from assets.resources import Dvc

    problems = []
    path = root / "dvc.yaml"
    try:
        if path.read_text("utf-8") != dvc_yaml():
            problems.append("dvc.yaml differs from the stage registry; write it again with `python -m pipelines.graph`")
    except FileNotFoundError:
        if Dvc.of(root).enabled:
            copy = "copy the file from the repository of the platform"
            problems.append(f"no {path}, so `dvc repro` has no stages; {copy}")
    for edge in sorted(dagster_edges() ^ registry_edges()):
        side = "Dagster" if edge in dagster_edges() else "the registry"
        problems.append(f"the edge {edge[0]} -> {edge[1]} is only in {side}")
    return problems


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "dvc.yaml").write_text(dvc_yaml(), "utf-8")
