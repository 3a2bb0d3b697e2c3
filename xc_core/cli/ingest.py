"""``xc ingest``: a folder of text becomes a dataset, or an error says why not and nothing is written.

Takes: a folder, a name.                   Gives: data/<dataset>/raw, data/<dataset>/corpus, an entry in params.yaml.
May import: data, stages.                  Never: touches the folder it reads.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from xc_core import artifacts
from xc_core.data.formats import LAYOUTS, detect
from xc_core.data.ingest import FILTERS, IngestConfig
from xc_core.errors import UsageError
from xc_core.metrics.propensity import PROPENSITY
from xc_core.stages import Ran, Workspace, run_stage
from xc_core.stages.workspace import checked_name

_DEFAULT = IngestConfig()


@click.command(short_help="Check a folder of text and make it a dataset.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--dataset", required=True, help="Name of the dataset: lower-case letters, digits, '-' and '.'.")
@click.option("--layout", type=click.Choice(["auto", *LAYOUTS.names()]), default="auto", show_default=True)
@click.option("--filters", type=click.Choice(FILTERS), default=_DEFAULT.filters, show_default=True,
              help="Pairs left out of predictions: from filter files, made from the uids, or none.")  # fmt: skip
@click.option("--propensity", type=click.Choice(PROPENSITY.names()), default=_DEFAULT.propensity, show_default=True)
@click.option("--validation-fraction", type=float, default=_DEFAULT.validation_fraction, show_default=True,
              help="Share of the train rows held out, by a hash of the uid.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="KIND",
              help="Let in empty-text, empty-labels, unseen-labels, repeated-labels or clean-text.")  # fmt: skip
@click.option("--max-line-bytes", type=int, default=_DEFAULT.max_line_bytes, show_default=True)
@click.option(
    "--label-separator",
    default=_DEFAULT.label_separator,
    show_default=True,
    help="Between the labels of a CSV cell.",
)
@click.option("--replace", is_flag=True, help="Replace a dataset of that name.")
def ingest(path: Path, dataset: str, replace: bool, **settings: object) -> None:
    """Check the folder PATH and make it the dataset NAME.

    The layout is found by the file names: XC repository JSON, XC text, PECOS, Parquet or CSV (docs/data-formats.md).
    Reading is strict: the first thing that is wrong is named with its file and line, and nothing is written.
    """
    workspace = Workspace.find()
    checked_name("dataset", dataset)
    allow = settings.pop("allow")
    config = IngestConfig(allow=tuple(allow), **settings)  # type: ignore[arg-type]
    ran = place(workspace, path, dataset, config, replace=replace)
    rows = ran.facts["rows"]
    click.echo(
        f"{dataset}: {rows['train']:,} train, {rows['validation']:,} validation, {rows['test']:,} test documents, "
        f"{ran.facts['labels']:,} labels"
    )
    click.echo(f"next: xc train --dataset {dataset} --recipe ngame")


def place(workspace: Workspace, path: Path, dataset: str, config: IngestConfig, *, replace: bool) -> Ran:
    """Ingest ``path`` in a scratch workspace and move the result in; nothing of ``workspace`` changes on an error."""
    target = workspace.raw(dataset)
    if target.exists() and path.resolve() == target.resolve():
        workspace.declare_dataset(dataset, config)
        return run_stage(workspace, "corpus", dataset)
    if target.exists() and not replace:
        raise UsageError(
            f"a dataset {dataset!r} at {target.parent}",
            expected="a new name",
            do="choose another name, or pass --replace",
        )
    layout = detect(path) if config.layout == "auto" else LAYOUTS[config.layout]
    source = layout.open(path, config.read_options())
    workspace.state.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ingest-", dir=workspace.state) as scratch:
        inner = Workspace(Path(scratch))
        artifacts.write_file(inner.root / "params.yaml", "datasets: {}\n")
        inner.declare_dataset(dataset, config)
        _copy(path, source.files, inner.raw(dataset))
        ran = run_stage(inner, "corpus", dataset)
        artifacts.install(inner.raw(dataset), target)
        artifacts.install(ran.folder, workspace.folder("corpus", dataset))
    workspace.declare_dataset(dataset, config)
    return Ran(workspace.folder("corpus", dataset), False, ran.seconds, ran.facts, ran.costs)


def _copy(folder: Path, files: list[Path], target: Path) -> None:
    """Copy what is read, and the papers that go with it (licence, readme)."""
    papers = [p for p in folder.iterdir() if p.is_file() and p.name.upper().startswith(("LICENSE", "README"))]
    target.mkdir(parents=True)
    for file in sorted({*files, *papers}):
        shutil.copyfile(file, target / file.name)
