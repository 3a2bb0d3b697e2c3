"""Names as boundaries, of datasets, recipes, documents and labels: what is accepted means the same in every program."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

import click
import dagster as dg
from mlflow.utils.validation import _validate_model_name

from assets.partitions import experiment_key, split_key
from assets.release.deleting import delete
from assets.release.lineage import lineage
from assets.release.versions import model_name
from tests.data.worlds import small_world, write_world
from tests.fuzz import mutate
from tests.fuzz.settings import read_again
from tests.fuzz.targets import Target
from xc_core.chain import Workspace, run_stage
from xc_core.chain.names import checked_name
from xc_core.cli.numbers import MOST, bound_numbers
from xc_core.data.corpus import Corpus
from xc_core.errors import UsageError
from xc_core.lifecycle.forget import preview

NAMES = (b"toy\0ngame", b"wordnet-mini\0house-of-2-cards", b"1\0null", b"a" * 64 + b"\0" + b"b" * 64)
"""A dataset and a recipe, as arguments of a command are given."""
UIDS = (b"document\0train-3", b"label\0007")
"""What to forget, and its uid."""
VERSIONS = (b"1", b"20")
_VERSION = (
    next(param for param in lineage.params if param.name == "version"),
    next(param for param in delete.params if param.name == "numbers"),
)


def _names(root: Path) -> Any:
    def run(data: bytes) -> None:
        dataset, recipe = _arguments(data, 2)
        checked_name("dataset", dataset)
        checked_name("recipe", recipe)
        for name in (dataset, recipe):
            assert shlex.quote(name) == name and not name.startswith("-"), "an argument of a command"
        with tempfile.TemporaryDirectory(dir=root) as folder:
            _check_folder(Workspace(Path(folder).resolve()), dataset, recipe)
        content = {"datasets": {dataset: {"source": "a"}}, "experiments": {f"{dataset}_{recipe}": {"recipe": recipe}}}
        assert read_again(content) == content, "a key of params.yaml"
        definition = dg.MultiPartitionsDefinition(
            {"dataset": dg.StaticPartitionsDefinition([dataset]), "recipe": dg.StaticPartitionsDefinition([recipe])}
        )
        (key,) = definition.get_partition_keys()
        assert key == experiment_key(dataset, recipe) and split_key(str(key)) == (dataset, recipe)
        _validate_model_name(model_name(dataset))
        assert re.fullmatch(r"models:/([^/@]+)@champion", f"models:/{model_name(dataset)}@champion")

    return run


def _check_folder(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Raise AssertionError unless the folders of an experiment are inside the project, and are made by that name."""
    home, folder = workspace.home(dataset), workspace.folder("model", dataset, recipe)
    assert home.resolve().parent == workspace.data.resolve(), "a folder of the project"
    assert folder.resolve().parents[1] == home.resolve(), "a folder of the dataset"
    folder.mkdir(parents=True)
    assert [path.name for path in workspace.data.iterdir()] == [dataset]
    assert [path.name for path in home.iterdir()] == [recipe]


def _uids(workspace: Workspace) -> Any:
    corpus = workspace.open(Corpus, "toy")
    known = {kind: {*corpus.table(f"{kind}s")["uid"]} for kind in ("document", "label")}

    def run(data: bytes) -> None:
        kind, uid = _arguments(data, 2)
        if kind not in known:
            raise UsageError(f"--{kind!r:.100}", expected="--document or --label", do="fix the option")
        documents, labels = ([uid], []) if kind == "document" else ([], [uid])
        shown = preview(workspace, "toy", documents, labels, with_documents=True)
        assert {*shown.documents} <= known["document"] and {*shown.labels} <= known["label"]
        assert uid in (shown.documents if kind == "document" else shown.labels)
        assert "\0" not in uid and uid.encode()

    return run


def _version(data: bytes) -> None:
    (text,) = _arguments(data, 1)
    for param in _VERSION:
        try:
            number = param.type.convert(text, param, None)
        except click.UsageError as error:
            raise UsageError(error.format_message(), expected="a whole number from 1", do="fix the number") from error
        assert isinstance(number, int) and 1 <= number <= MOST


def _arguments(data: bytes, size: int) -> list[str]:
    """Return arguments as the system passes them: bytes without NUL, which may be no text."""
    found = [os.fsdecode(part) for part in data.split(b"\0")]
    return [*found, *[""] * size][:size]


def targets(root: Path) -> list[Target]:
    """Return the boundaries of names, with their files under ``root``."""
    for command in (lineage, delete):
        bound_numbers(command)
    workspace = Workspace(root / "project")
    write_world(root / "project" / "data" / "toy" / "raw", "xc-json", small_world(12, 4))
    (root / "project" / "params.yaml").write_text(
        "datasets:\n  toy:\n    corpus: {filters: none, allow: [unseen-labels]}\n"
    )
    run_stage(workspace, "corpus", "toy")
    return [
        Target("names", "names", NAMES, mutate.bytes_changed, _names(root), 5),
        Target("uids to forget", "names", UIDS, mutate.bytes_changed, _uids(workspace), 1),
        Target("version", "names", VERSIONS, mutate.bytes_changed, _version, 1),
    ]
