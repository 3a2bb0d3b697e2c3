"""Delete experiments, or a whole dataset: their entries in params.yaml and dvc.lock, and their files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xc_core.chain import incoming
from xc_core.chain.names import checked_name
from xc_core.chain.reports import report_path
from xc_core.chain.workspace import PER_DATASET, Workspace, at_rest, training
from xc_core.errors import ConfigError, MissingError, StorageError, nearest
from xc_core.leftovers import drop_all
from xc_core.lifecycle import dvc_lock
from xc_core.lifecycle.drift import record_path

_KEY: Final = "[0-9a-f]" * 16


@dataclass(frozen=True)
class Deletion:
    """What is deleted: some experiments of a dataset, or a dataset with all of them."""

    dataset: str
    recipes: tuple[str, ...]
    whole: bool
    paths: tuple[Path, ...]
    """Files and folders that are there."""

    @classmethod
    def of(cls, workspace: Workspace, dataset: str, recipes: Sequence[str] = ()) -> Deletion:
        """Find what belongs to the experiments with these recipes or, if none is named, to the dataset.

        What has lost its entry in params.yaml is found by its folder. Raises MissingError for what has neither,
        ConfigError for a recipe that the dataset's setting ``release.recipes`` names.
        """
        home, recipes_present = workspace.home(dataset), workspace.params.recipes(dataset)
        names = [checked_name("recipe", recipe) for recipe in dict.fromkeys(recipes)]
        datasets = workspace.params.datasets()
        if dataset not in datasets and not home.is_dir():
            raise _unknown_error("dataset", dataset, datasets)
        for name in names:
            if name not in recipes_present and not (home / name).is_dir():
                raise _unknown_error("experiment", name, recipes_present)
        if names and dataset in datasets:
            _check_not_released(workspace, dataset, names)
        candidates = _of_experiments(workspace, dataset, names) if names else _of_dataset(workspace, dataset)
        paths = sorted({path for path in candidates if os.path.lexists(path)})
        return cls(dataset, tuple(names or recipes_present), not names, tuple(paths))


def delete(workspace: Workspace, dataset: str, recipes: Sequence[str] = ()) -> int:
    """Delete what ``Deletion.of`` finds; return the number of stages that left dvc.lock.

    The entries of params.yaml go last: if the command is killed, the same command does the rest. Raises BusyError if a
    stage, a study or the gate of the dataset, a training, a change of the dataset or dvc is running, StorageError if
    files cannot be deleted.
    """
    deletion = Deletion.of(workspace, dataset, recipes)
    with ExitStack() as locks:
        for recipe in deletion.recipes:
            locks.enter_context(training(workspace, dataset, recipe))
        if deletion.whole:
            locks.enter_context(incoming.change_lock(workspace, dataset))
        locks.enter_context(at_rest(workspace, dataset))
        deletion = Deletion.of(workspace, dataset, recipes)  # what was made until then
        try:
            unrecorded = _remove_from_dvc_lock(workspace, deletion)  # first, because dvc may be running
        except StorageError:  # a full disk has no room for another dvc.lock until files are gone
            drop_all(deletion.paths)
            unrecorded = _remove_from_dvc_lock(workspace, deletion)
        drop_all(deletion.paths)
        workspace.params.remove(dataset, deletion.recipes, whole=deletion.whole)
    return unrecorded


def _remove_from_dvc_lock(workspace: Workspace, deletion: Deletion) -> int:
    """Remove the stages of what is deleted from dvc.lock; return how many there were."""
    recipes = (None,) if deletion.whole else deletion.recipes
    return sum(dvc_lock.forget(workspace, deletion.dataset, recipe) for recipe in recipes)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; links are not followed.

    A file that is gone, as one of a training that runs, has none.
    """
    if path.is_symlink() or not path.is_dir():
        return _bytes(path)
    return sum(_bytes(Path(folder) / name) for folder, _, names in os.walk(path) for name in names)


def _bytes(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0


def _unknown_error(kind: str, name: str, known: Sequence[str]) -> MissingError:
    return MissingError(
        f"no {kind} {name!r}{nearest(name, known)}",
        expected=f"one of {', '.join(known)}" if known else f"a known {kind}; there is none",
        do="fix the name; if it was deleted already, there is nothing to do",
    )


def _check_not_released(workspace: Workspace, dataset: str, names: Sequence[str]) -> None:
    released = workspace.params.dataset(dataset).release.recipes
    for name in names:
        if name in released:
            raise ConfigError(
                f"datasets.{dataset}.release.recipes, which names {name!r}",
                expected="only recipes that stay",
                do="take the recipe out of the list, then run the same command again",
            )


def _of_experiments(workspace: Workspace, dataset: str, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        yield workspace.home(dataset) / name
        yield report_path(workspace, dataset, name)
        yield record_path(workspace, dataset, name)
        yield from _scratch(workspace, f"*@{dataset}_{name}")


def _of_dataset(workspace: Workspace, dataset: str) -> Iterator[Path]:
    state = workspace.state
    yield workspace.home(dataset)
    yield from (state / kind / dataset for kind in (*PER_DATASET, "tune"))
    yield from (state / kind / f"{dataset}.json" for kind in ("champions", "source", incoming.PREFIX))
    yield from (state / "budget").glob(f"{dataset}-{_KEY}.json")
    yield from _scratch(workspace, f"*@{dataset}")
    yield from _scratch(workspace, f"*@{dataset}_*")


def _scratch(workspace: Workspace, names: str) -> Iterator[Path]:
    """Yield checkpoints and timings, by a pattern of ``Workspace.scratch``."""
    for kind in ("run", "cost"):
        yield from (workspace.state / kind).glob(names)
