"""``xc plan``: what each stage of a recipe will cost in time, memory and disk, before anything is trained."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from xc_core import canonical
from xc_core.chain import STAGES, Workspace
from xc_core.chain.costs import gigabytes
from xc_core.cli.options import Number, recipe_option
from xc_core.cli.train import changes_of
from xc_core.errors import UsageError
from xc_core.pretrained import BAG
from xc_core.visible import counted

if TYPE_CHECKING:
    from xc_core.planning.estimator import Cost
    from xc_core.planning.planned import Subject

_SIZES: Final = ("documents", "labels", "tokens")
_DEVICE: Final = re.compile(r"(?:([1-9]\d{0,5})x)?(?:cpu|cuda)|cuda:\d+", re.ASCII)


@click.command(short_help="Estimate time, memory and disk of every stage.")
@click.option("--dataset", default=None, help="Name of a dataset of the project; or give sizes.")
@recipe_option
@click.option("--documents", type=click.IntRange(min=10), help="Number of documents, test documents included.")
@click.option("--test-documents", type=click.IntRange(min=1), help="Test documents among them. [default: a tenth]")
@click.option("--labels", type=click.IntRange(min=1), help="Number of labels.")
@click.option("--tokens", type=Number(least=1), help="Mean tokens of a document.")
@click.option("--label-tokens", type=Number(least=1), default=6, show_default=True,
              help="Mean tokens of a label.")  # fmt: skip
@click.option("--labels-per-document", type=Number(least=1), default=2, show_default=True,
              help="Mean labels of a document.")  # fmt: skip
@click.option("--dim", type=click.IntRange(min=1), help="Width of the vectors. [default: the encoder's]")
@click.option("--set", "settings", multiple=True, metavar="STAGE.FIELD=VALUE", help="Change a setting, as in xc train.")
@click.option(
    "--devices", default="cpu", show_default=True, help="Devices, with commas: cpu, cuda, cuda:N, Nxcuda, Nxcpu."
)
@click.option("--force", is_flag=True, help="Measure the rates of this machine again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def plan(
    dataset: str | None, recipe: str, settings: tuple[str, ...], dim: int | None, devices: str, force: bool,
    as_json: bool, **sizes: Any,
) -> None:  # fmt: skip
    """Print what every stage of a recipe costs on a dataset, or on one of a given size.

    The recipe is run on a few documents first, which takes a minute or two; its rates are kept in .xc/plan. Times are
    running time of one process (CPU seconds), memory is the largest resident memory. On a GPU, rates that
    `make gpu-proof` recorded are used; without them nothing is estimated for it.

    8xcuda is 8 processes with a GPU each, under torchrun. The stages encoder, embeddings, negatives and classifier
    divide their work, all others run in one process. Costs are those of each process; the time of what they exchange is
    not estimated.
    """
    workspace, processes_of = Workspace.find(), _devices(devices)
    _check_data(workspace, dataset, sizes)
    from xc_core.memory import total_bytes
    from xc_core.planning.on_gpu import gpu_rates, on_gpu
    from xc_core.planning.planned import costs_of, rates_of, sparing_note

    recorded, (base, changes) = gpu_rates(workspace), _recipe(workspace, dataset, recipe, settings, dim)
    subject = _subject(workspace, dataset, base, changes, sizes)
    rates = rates_of(workspace, subject, again=force)
    costs_of_device, notes = {}, []
    for name, processes in processes_of.items():
        if name.endswith("cpu"):
            costs = costs_of(subject, rates, processes)
            note = sparing_note(subject) if processes == 1 else ""
        else:
            costs, note = on_gpu(name, subject, rates, recorded, processes)
        notes += [note] if note else []
        if costs:
            costs_of_device[name] = costs
    if as_json:
        rows = {name: [asdict(cost) for cost in costs] for name, costs in costs_of_device.items()}
        click.echo(canonical.line({"recipe": recipe, "world": asdict(subject.world), "stages": rows, "notes": notes}))
        return
    for name, costs in costs_of_device.items():
        click.echo(table(subject, recipe, name, costs))
        if warning := _memory_warning(costs, processes_of[name], total_bytes()):
            click.echo(f"warning: {warning}")
    for note in notes:
        click.echo(note)


def _devices(text: str) -> dict[str, int]:
    """Return the number of processes of each device."""
    names = [name.strip() for name in text.split(",")]
    matches = {name: match for name in names if (match := _DEVICE.fullmatch(name))}
    unknown = [name for name in names if name not in matches]
    if unknown:
        raise UsageError(
            f"--devices {text}", expected="cpu, cuda, cuda:N, Nxcuda or Nxcpu, with commas", do=f"fix {unknown[0]!r}"
        )
    return {name: int(match[1] or 1) for name, match in matches.items()}


def _recipe(
    workspace: Workspace, dataset: str | None, recipe: str, settings: tuple[str, ...], dim: int | None
) -> tuple[str, dict[str, Any]]:
    """Return a registered recipe and its changes: those of params.yaml for the dataset, then of --set, then of --dim.

    --dim is the width of ``bag``, a projection of any other encoder.
    """
    from xc_core.params import deep_merged
    from xc_core.recipes import find_recipe

    base, declared = (workspace.params.declared(dataset, recipe) if dataset else None) or (recipe, {})
    changes = deep_merged(declared, changes_of(settings))
    if dim is None:
        return base, changes
    config = find_recipe(base).changed(changes).encoder.encoder
    field = "width" if config.name == BAG and not config.projection else "projection"
    return base, deep_merged(changes, {"encoder": {"encoder": {field: dim}}})


def _check_data(workspace: Workspace, dataset: str | None, sizes: dict[str, Any]) -> None:
    """Raise UsageError unless there is either a dataset or its sizes, MissingError for an unknown dataset."""
    source = click.get_current_context().get_parameter_source
    given = [name for name in sizes if source(name) is not ParameterSource.DEFAULT]
    if bool(dataset) == bool(given) or (given and not set(_SIZES) <= set(given)):
        options = ["--" + "-".join(name.split("_")) for name in (*(["dataset"] if dataset else []), *given)]
        raise UsageError(
            "xc plan with " + (" and ".join(options) or "neither data nor sizes"),
            expected="--dataset NAME, or --documents, --labels and --tokens",
            do="for instance xc plan --documents 1000000 --labels 100000 --tokens 20 --recipe ngame",
        )
    if dataset:
        workspace.params.dataset(dataset)


def _subject(
    workspace: Workspace, dataset: str | None, base: str, changes: dict[str, Any], sizes: dict[str, Any]
) -> Subject:
    """Return what is planned."""
    from xc_core.planning.data_size import DataSize
    from xc_core.planning.planned import Subject

    if not dataset:
        documents, test = sizes["documents"], sizes["test_documents"]
        if test is not None and documents - test < 1:
            raise UsageError(
                f"--test-documents {test} of --documents {documents}",
                expected="a document to train on",
                do="give fewer test documents, or more documents in all",
            )
        world = DataSize.of_sizes(
            documents, sizes["labels"], sizes["tokens"], sizes["label_tokens"], sizes["labels_per_document"], test
        )
        return Subject(base, changes, world)
    return Subject.of_experiment(workspace, dataset, base, changes)


def table(subject: Subject, recipe: str, device: str, costs: list[Cost]) -> str:
    """Return the costs as an aligned table."""
    world = subject.world
    title = subject.title if recipe == subject.base else f"{recipe}, {subject.title}"
    documents = f"{counted(world.documents, 'document')} of {counted(round(world.document_tokens), 'token')}"
    labels = f"{counted(world.labels, 'label')} of {world.label_tokens:.0f}"
    where = f"each process of {device}" if "x" in device else f"one process on {device}"
    lines = [
        f"{title}: {documents}, {labels}; {where}",
        f"{'stage':<12}{'time':>12}{'memory':>12}{'disk':>12}",
    ]
    lines += [f"{c.stage:<12}{_time(c.seconds):>12}{gigabytes(c.memory):>12}{gigabytes(c.disk):>12}" for c in costs]
    seconds, disk = (sum(getattr(cost, name) for cost in costs) for name in ("seconds", "disk"))
    peak = max(cost.memory for cost in costs)
    return "\n".join([*lines, f"{'all':<12}{_time(seconds):>12}{gigabytes(peak):>12}{gigabytes(disk):>12}"])


def _memory_warning(costs: list[Cost], processes: int, limit: int) -> str:
    """Return which stage needs more memory than ``limit``, which this machine has, if all processes are started here.

    An empty string if none does.
    """
    needed = {cost.stage: cost.memory * (processes if STAGES[cost.stage].shared else 1) for cost in costs}
    largest = max(needed, key=needed.__getitem__)
    if needed[largest] <= limit:
        return ""
    divided = processes > 1 and STAGES[largest].shared
    in_all = f" in {processes} processes ({gigabytes(needed[largest])})" if divided else ""
    return f"{largest}{in_all} needs more memory than this machine has ({gigabytes(limit)})"


def _time(seconds: float) -> str:
    """Return seconds for people, with the largest unit that is not below 1."""
    for unit, name in ((31_557_600, "years"), (86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.2f} s"
