"""One graph in three places: the registry of stages, Dagster's assets, dvc.yaml. This writes the last and compares all.

Takes: the registry, the definitions, dvc.yaml.     Gives: dvc.yaml's content; a list of differences.
May import: ruamel.yaml, pipelines.definitions, xc_core.stages.  Never: edits the registry to fit.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from xc_core.stages.registry import STAGES, Stage

HEAD: Final = """\
# Written from the stage registry (xc_core/stages/registry.py) by `python -m pipelines.graph`; a test compares the two.
# Addresses: corpus@<dataset>, encoder@<dataset>_<recipe>. Outs persist: `dvc repro` must not delete a good model.
"""


def stage_entry(stage: Stage) -> dict[str, Any]:
    """Return the entry of one stage in dvc.yaml."""
    per_dataset = stage.scope == "dataset"
    dataset = "${key}" if per_dataset else "${item.dataset}"
    flags = f"--dataset {dataset}" + ("" if per_dataset else " --recipe ${item.recipe}")
    params = f"datasets.{dataset}.{stage.name}" if per_dataset else f"experiments.${{key}}.stages.{stage.name}"
    deps = [f"data/{dataset}/raw"] if stage.needs_source else []
    deps += [_read(STAGES[dep], stage, dataset) for dep in stage.deps]
    if stage.scope == "experiment":
        deps.append("${item.source}")
    folder = _folder(stage, dataset)
    entry: dict[str, Any] = {"cmd": f"xc run {stage.name} {flags}", "deps": deps, "params": [params]}
    entry["outs"] = [{folder: {"persist": True}}]
    return {"foreach": "${datasets}" if per_dataset else "${experiments}", "do": entry}


def _read(dep: Stage, reader: Stage, dataset: str) -> str:
    """Return the path ``reader`` reads of ``dep``: of tokens only its own tokenizer's store."""
    own_store = dep.name == "tokens" and reader.scope == "experiment"
    return _folder(dep, dataset) + ("/${item.tokens}" if own_store else "")


def _folder(stage: Stage, dataset: str) -> str:
    return (
        f"data/{dataset}/{stage.name}" if stage.scope == "dataset" else f"data/{dataset}/${{item.recipe}}/{stage.name}"
    )


def dvc_yaml() -> str:
    """Return the content of dvc.yaml."""
    content: dict[str, Any] = {"stages": {s.name: stage_entry(s) for s in STAGES.values() if s.versioned}}
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    yaml.dump(content, out)
    return HEAD + out.getvalue()


def dagster_edges() -> set[tuple[str, str]]:
    """Return (upstream, downstream) of every edge of Dagster's asset graph."""
    from pipelines.definitions import ASSETS

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
    """Return what does not agree, as sentences."""
    found = []
    if (root / "dvc.yaml").read_text("utf-8") != dvc_yaml():
        found.append("dvc.yaml differs from the stage registry; write it again with `python -m pipelines.graph`")
    for edge in sorted(dagster_edges() ^ registry_edges()):
        side = "Dagster" if edge in dagster_edges() else "the registry"
        found.append(f"the edge {edge[0]} -> {edge[1]} is only in {side}")
    return found


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "dvc.yaml").write_text(dvc_yaml(), "utf-8")
