"""Compares ``xc plan`` with runs: each of six recipes and datasets is trained, then planned, in a project of its own.

``python -m benchmarks.plans FOLDER`` makes the datasets from the bundled WordNetMini (one as it is, two of pairs, see
``product``), and prints, by stage, the plan's CPU seconds and memory over those of the run. FOLDER is kept: a second
call plans and compares again without training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.harness import machine, today
from benchmarks.product import RAW

_BAG: Final = {"encoder.encoder.name": "bag", "encoder.encoder.width": 64, "encoder.encoder.max_length": 32}
_PAIRS: Final = {"pairs-20k": 20_000, "pairs-100k": 100_000}
"""Documents and labels of the datasets of pairs."""
_TEST: Final = 5000
_RUNS: Final = (
    ("wordnet", "ngame", 2.0, 5),
    ("pairs-20k", "ngame", 1.0, 2),
    ("wordnet", "astra", 1.0, 2),
    ("wordnet", "house", 1.0, 3),
    ("pairs-20k", "dpr", 1.0, 1),
    ("pairs-100k", "ngame", 0.5, 1),
)
"""Dataset, recipe, epochs of M1 and of M4."""


def _run_xc(project: Path, *arguments: str) -> str:
    """Run ``xc`` with one thread in ``project``; return what it printed, or end with its error."""
    single_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "xc_core.cli.main", *arguments]
    root = str(Path(__file__).parents[1])
    ended = subprocess.run(
        command,
        cwd=project,
        env=os.environ | single_thread | {"PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise click.ClickException(f"xc {' '.join(arguments)} ended with {ended.returncode}")
    return ended.stdout


def _prepare(folder: Path) -> Path:
    """Return a project in ``folder`` with the three datasets."""
    project = folder / "project"
    if not (project / "params.yaml").is_file():
        project.mkdir(parents=True)
        (project / "params.yaml").write_text("datasets: {}\nexperiments: {}\n", "utf-8")
        _run_xc(project, "ingest", str(RAW), "--dataset", "wordnet")
        for name, size in _PAIRS.items():
            sizes = ("--documents", str(size), "--labels", str(size), "--test", str(_TEST))
            command = [sys.executable, "-m", "benchmarks.product", str(folder / name), *sizes]
            subprocess.run(command, cwd=Path(__file__).parents[1], check=True)
            _run_xc(project, "ingest", str(folder / name), "--dataset", name)
    return project


def _compare(project: Path, dataset: str, recipe: str, settings: list[str]) -> dict[str, tuple[float, ...]]:
    """Train unless that was done, plan; return CPU seconds and MB of plan and run, by stage."""
    options = ("--dataset", dataset, "--recipe", recipe, *settings)
    _run_xc(project, "train", *options, "--budget", "none")
    planned = json.loads(_run_xc(project, "plan", *options, "--force", "--json"))["stages"]["cpu"]
    costs: dict[str, tuple[float, ...]] = {}
    for cost in planned:
        if cost["stage"] == "corpus":
            continue  # xc ingest made it
        partition = dataset if cost["stage"] == "tokens" else f"{dataset}_{recipe}"
        ran: dict[str, Any] = json.loads((project / ".xc" / "cost" / f"{cost['stage']}@{partition}").read_text("utf-8"))
        memory = cost["memory"] / (1 << 20)
        costs[cost["stage"]] = (cost["seconds"], ran["cpu_seconds"], memory, ran["peak_memory_mb"])
    return costs


@click.command()
@click.argument("folder", type=Path)
def main(folder: Path) -> None:
    """Train, plan and compare in FOLDER; print a table in Markdown."""
    project = _prepare(folder.resolve())
    click.echo(f"{machine()}, {today()}: plan over run\n")
    for number, (dataset, recipe, encoder, classifier) in enumerate(_RUNS):
        changes = {**_BAG, "encoder.epochs": encoder, "classifier.epochs": classifier}
        settings = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
        costs = _compare(project, dataset, recipe, settings)
        if not number:
            click.echo("| run | plan, CPU s | run, CPU s | all | " + " | ".join(costs) + " | memory |")
            click.echo("| --- " * (len(costs) + 5) + "|")
        plan, ran = (sum(cost[column] for cost in costs.values()) for column in (0, 1))
        memory = max(cost[2] for cost in costs.values()) / max(cost[3] for cost in costs.values())
        ratios = " | ".join(f"{cost[0] / cost[1]:.2f}" for cost in costs.values())
        click.echo(
            f"| `{dataset}` / `{recipe}` | {plan:.1f} | {ran:.1f} | {plan / ran:.2f} | {ratios} | {memory:.2f} |"
        )


if __name__ == "__main__":
    main()
