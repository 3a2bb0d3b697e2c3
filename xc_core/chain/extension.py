"""Extends the artefacts of a model by new labels, without training or fitting: what may be extended, and what is kept.

An artefact is extended if nothing but labels was added since it was made. A stage with results for labels has a
function ``extend``; the artefact of any other stage is taken over as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from xc_core import artifacts, manifests
from xc_core.chain import changelog
from xc_core.chain.context import Context
from xc_core.chain.dataset import Partition
from xc_core.chain.fingerprints import differing, input_folder, inputs, only_inputs, same_cut
from xc_core.chain.registry import Stage
from xc_core.chain.workspace import Workspace
from xc_core.errors import MovedError
from xc_core.linked import link_files

EXTENDED_FROM: Final = "extended_from"
"""Fact of an extended artefact: the digests of those that it extends, the oldest first."""


EXTENDED_TO: Final = "extended_to"
"""Fact of an extended artefact: how many labels there were after each of these extensions, so which ones came together.
0.2.0 did not record it, so there may be fewer numbers than digests."""


def extension_facts(workspace: Workspace, stage: str, partition: Partition) -> dict[str, Any]:
    """Return the facts of an artefact that extends the present one of a stage: what it extends, by which labels."""
    folder = workspace.folder(stage, *partition.key)
    labels = artifacts.read_made(workspace.folder("corpus", partition.key[0])).facts["labels"]
    return {
        EXTENDED_FROM: [*_extensions(folder, EXTENDED_FROM), manifests.read_manifest(folder).digest()],
        EXTENDED_TO: [*_extensions(folder, EXTENDED_TO), labels],
    }


def check_extendable(workspace: Workspace, stage: Stage, partition: Partition, digests: dict[str, str]) -> None:
    """Raise MovedError if anything but new labels changed since the stage's artefact was made.

    ``digests`` are those of the parts that it depends on now. Raises MissingError if there is no artefact.
    """
    folder = workspace.folder(stage.name, *partition.key)
    manifests.read_manifest(folder, stage.name)
    made = artifacts.read_made(folder)
    changed = [name for name in differing(dict(made.depends), digests) if not only_inputs([name])]
    for dep in inputs(stage, partition):
        if not _only_grew(workspace, dep, partition, made.depends.get(dep, ""), digests[dep]):
            changed.append(dep)
    if changed:
        dataset, recipe = partition.key
        command = stage.command(dataset, None) if recipe is None else workspace.params.train_command(dataset, recipe)
        partition_name = "/".join(filter(None, partition.key))
        raise MovedError(
            f"{stage.name} of {partition_name} out of date: {' and '.join(changed)} changed since it was made",
            expected="a model that is up to date but for new labels",
            do=f"{command}, or a refresh (docs/runbook.md)",
        )


def _only_grew(workspace: Workspace, dep: str, partition: Partition, old_digest: str, new_digest: str) -> bool:
    """Return True if an input is as it was, or extended by labels since."""
    if dep == "tokens":
        return same_cut(workspace, partition)
    if old_digest == new_digest:
        return True
    if dep == "corpus":
        return changelog.only_labels(workspace, partition.key[0], old_digest, new_digest)
    return old_digest in _extensions(input_folder(workspace, dep, partition), EXTENDED_FROM)


def _extensions(folder: Path, fact: str) -> list[Any]:
    values = artifacts.read_made(folder).facts.get(fact, [])
    return list(values) if isinstance(values, list) else []


def take_over(context: Context[Any]) -> None:
    """Link all files of the present artefact: what was mined or measured without the new labels stays."""
    manifest = manifests.read_manifest(context.previous)
    artifacts.check_sizes(context.previous, manifest)
    link_files(context.previous, context.build.path, manifest.files)
    context.build.facts |= artifacts.read_made(context.previous).facts
