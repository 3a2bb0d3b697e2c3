"""Times ``xc add-labels``, ``xc update`` and ``xc forget`` in a project of a synthetic dataset with many labels.

``python -m benchmarks.many_labels FOLDER`` writes the dataset, trains a small model, and runs each command, cold, in a
copy of the project. It prints CPU seconds and the peak memory of each process, imports included. FOLDER is kept: a
second call does not train again, unless the first one failed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.harness import machine, today
from xc_core.shapes import Array

NAME: Final = "many-labels"
_WORDS: Final = 30_000
_MAX_NEW: Final = 20_000
_TESTS: Final = 1000
_TRAIN: Final = (
    "train --recipe ngame --budget none --set encoder.encoder.name=bag --set encoder.encoder.width=128 "
    "--set encoder.epochs=1 --set encoder.order.batch_size=1024 --set encoder.order.kind=random "
    "--set classifier.epochs=1 --set classifier.refit=false --set fusion.rows=2000"
)


class ManyLabels:
    """L labels of four words and a number; a document has two labels, three words of each, and one other word."""

    def __init__(self, labels: int, seed: int = 0) -> None:
        self.labels, self.random = labels, np.random.default_rng(seed)
        draws = (_WORDS * self.random.random((labels + _MAX_NEW, 4)) ** 2).astype(int)
        self.words: Array = np.minimum(draws, _WORDS - 1)
        self.order = self.random.permutation(labels)

    def write(self, folder: Path) -> None:
        """Write the dataset as xc-json: a train document with each label, and test documents."""
        folder.mkdir(parents=True)
        _write(folder / "lbl.json", (_row(f"L{i}", self._text(i)) for i in range(self.labels)))
        drawn = self.random.integers
        train = (self._document(f"D{i}", self.order[i], drawn(self.labels)) for i in range(self.labels))
        _write(folder / "trn.json", train)
        tests = (self._document(f"T{i}", drawn(self.labels), drawn(self.labels)) for i in range(_TESTS))
        _write(folder / "tst.json", tests)

    def write_new(self, path: Path, count: int) -> None:
        """Write ``count`` more labels, at most 20,000, as CSV."""
        rows = [f"N{i},{self._text(self.labels + i)}" for i in range(count)]
        path.write_text("\n".join(["uid,text", *rows]) + "\n")

    def write_update(self, folder: Path) -> None:
        """Write an update: one document with the labels 0 and 1."""
        folder.mkdir()
        _write(folder / "lbl.json", [_row(f"L{i}", self._text(i)) for i in (0, 1)])
        _write(folder / "trn.json", [_row("U0", "w1 w2 w3", target_ind=[0, 1])])

    def _text(self, label: int) -> str:
        return " ".join(f"w{word}" for word in self.words[label]) + f" l{label}"

    def _document(self, uid: str, *labels: int | np.integer[Any]) -> dict[str, Any]:
        words = [f"w{word}" for label in labels for word in self.random.permutation(self.words[label])[:3]]
        text = " ".join([*words, f"w{self.random.integers(_WORDS)}"])
        return _row(uid, text, target_ind=sorted({int(label) for label in labels}))


def _row(uid: str, text: str, **more: Any) -> dict[str, Any]:
    return {"uid": uid, "title": text, "content": "", **more}


def _write(path: Path, rows: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
    with path.open("w") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


_COMMAND: Final = """
import atexit, sys
from pathlib import Path
from xc_core.chain.costs import peak_memory_mb
from xc_core.cli.main import main
peak = Path(sys.argv.pop())
atexit.register(lambda: peak.write_text(str(peak_memory_mb())))
main()
"""
"""Writes its own peak: what ``wait4`` returns is at least the peak of the process that starts it."""


def run(project: Path, command: str) -> tuple[float, float, float]:
    """Run ``xc COMMAND`` in a project with one thread; return CPU seconds, wall seconds and peak memory in GB."""
    start = time.perf_counter()
    single_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "XC_ROOT": str(project)}
    with tempfile.TemporaryDirectory() as scratch:
        peak = Path(scratch) / "peak"
        arguments = [sys.executable, "-c", _COMMAND, *command.split(), "--dataset", NAME, str(peak)]
        child = os.posix_spawn(sys.executable, arguments, os.environ | single_thread)
        _, status, usage = os.wait4(child, 0)
        wall = time.perf_counter() - start
        if status:
            raise click.ClickException(f"xc {command} ended with {os.waitstatus_to_exitcode(status)}")
        return usage.ru_utime + usage.ru_stime, wall, float(peak.read_text()) * (1 << 20) / 1e9


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, resolve_path=True))
@click.option("--labels", default=100_000, show_default=True)
@click.option("--new", default=(10, 1000, 10_000), show_default=True, multiple=True, help="Labels to add.")
def main(folder: Path, labels: int, new: tuple[int, ...]) -> None:
    """Write, train, and time each command on a copy of the project."""
    project, world = folder / "project", ManyLabels(labels)
    if not project.is_dir():
        drop, staging = folder / "drop", folder / "making"
        for leftover in (drop, staging):  # of a call that failed
            shutil.rmtree(leftover, ignore_errors=True)
        world.write(drop)
        staging.mkdir()
        (staging / "params.yaml").write_text("datasets: {}\nexperiments: {}\n")
        run(staging, f"ingest {drop} --split uid")
        run(staging, _TRAIN)
        staging.rename(project)
    commands = {f"add-labels {count:,}": f"add-labels {folder / f'new-{count}.csv'}" for count in new}
    for count in new:
        world.write_new(folder / f"new-{count}.csv", count)
    shutil.rmtree(folder / "update", ignore_errors=True)
    world.write_update(folder / "update")
    commands |= {"update": f"update {folder / 'update'}", "forget": "forget --document D5"}
    click.echo(f"{today()}, {machine()}, {labels:,} labels\n\n| command | CPU | wall | peak memory |")
    click.echo("| --- | ---: | ---: | ---: |")
    for name, command in commands.items():
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(project, copy)
        seconds, wall, memory = run(copy, command)
        click.echo(f"| {name} | {seconds:.1f} s | {wall:.1f} s | {memory:.2f} GB |")
    shutil.rmtree(copy)


if __name__ == "__main__":
    main()
