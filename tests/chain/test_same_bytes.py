"""Two workspaces with the same source files and parameters hold the same bytes, whatever the name of their folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.chain.toy import NAMES
from xc_core.chain import Workspace, run_stage

ODD = "run=1 [a] *"
"""The name of a folder that is a pattern too, which polars expands if it may."""


def files_of(workspace: Workspace) -> dict[str, bytes]:
    """Return all files of all artefacts but the leaderboard, which shows times."""
    found = (path for path in workspace.data.rglob("*") if path.is_file() and "leaderboard" not in path.parts)
    return {path.relative_to(workspace.data).as_posix(): path.read_bytes() for path in found}


def beside(trained: Workspace, root: Path, stages: tuple[str, ...]) -> Workspace:
    """Return a second workspace with the same source files and parameters, and copies of ``stages``."""
    other = Workspace(root)
    for folder in (trained.raw("toy"), *(trained.folder(name, "toy", "ngame") for name in stages)):
        shutil.copytree(folder, other.root / folder.relative_to(trained.root))
    shutil.copyfile(trained.root / "params.yaml", other.root / "params.yaml")
    return other


def test_two_workspaces_make_the_same_tokens_to_the_byte(trained: Workspace, tmp_path: Path) -> None:
    """A vocabulary made from the corpus included."""
    other = beside(trained, tmp_path / ODD, ())
    for name in ("corpus", "tokens"):
        run_stage(other, name, "toy")
    expected, found = files_of(trained), files_of(other)
    assert [name for name, data in found.items() if data != expected[name]] == []
    assert {"toy/settings/corpus.json", "toy/tokens/wordpiece/tokenizer.json"} < set(found)


def test_two_workspaces_with_the_same_tokens_make_the_same_of_them_to_the_byte(
    trained: Workspace, tmp_path: Path
) -> None:
    """Weights, vectors, trees, pictures, manifests and settings files."""
    other = beside(trained, tmp_path / ODD, ("corpus", "tokens"))
    for name in NAMES[2:]:
        assert not run_stage(other, name, "toy", "ngame").skipped
    expected, found = files_of(trained), files_of(other)
    of_dataset = {"toy/settings/corpus.json", "toy/settings/tokens.json"}
    released = {name for name in expected if name.startswith("toy/acceptance/")}  # drawn by tests of releases
    assert set(found) == set(expected) - of_dataset - released
    assert len(found) > 40
    assert [name for name in found if found[name] != expected[name]] == []
