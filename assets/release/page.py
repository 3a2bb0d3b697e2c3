"""What the MLflow page of a registered model shows: figures with intervals, settings, plots, data, a description."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from assets.links import markdown, mlflow_own, mlflow_plots
from assets.markdown import escaped
from assets.release.origin import FOLDER, Origin
from assets.release.versions import model_name
from assets.tracking import NOTE, DataVersion, Logged, flat, log_data, log_figures
from xc_core.chain import Workspace
from xc_core.leftovers import temporary_folder
from xc_core.manifests import pictures
from xc_core.metrics.calibration import at_least
from xc_core.metrics.names import titled
from xc_core.params import plain

if TYPE_CHECKING:
    from assets.release.gate import Verdict

MODEL_PAGE: Final = """\
Labels for texts of the dataset `{dataset}`. Input: a list of texts; parameters: `k`, the number of labels of each text,
`tail`, the dial from 0 (the likeliest labels first) to 1 (rare labels higher; -1: the model's own), and
`min_probability`, below which labels are left out. Output: uid, title, score and probability of the best labels. Ask
it: `xc predict --dataset {dataset} "some text"`.

Aliases: `champion` is served, `challenger` passed the gate last, `previous` was champion before. Every version says
where it comes from: `xc lineage VERSION --dataset {dataset}`."""
_BY_HAND: Final = "**Promoted by hand** by"
_MAX_TAG_SHOWN: Final = 300
"""Characters of a tag that a page shows; MLflow stores 5,000 of a page."""
_HEADLINE: Final = ("P_at_1", "P_at_5", "PSP_at_1", "PSP_at_5")
ORIGIN: Final = {
    "git": "commit",
    "git_changed": "changed since the commit",
    "data": "data version",
    "dagster_run": "Dagster run",
    "made_by": "made by",
}
"""Tags that say where a version comes from, and their names for people."""


@dataclass(frozen=True)
class Page:
    """What is logged to the run of a registered model."""

    metrics: dict[str, float] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    plots: list[Path] = field(default_factory=list)
    data: DataVersion | None = None
    """What the model was trained on."""
    note: str = ""
    """Description of the run."""

    @staticmethod
    def place(path: Path) -> str:
        """Return where a file of ``plots`` is in the run: pictures have a folder of their own."""
        return f"plots/{path.name}" if path.suffix == ".png" else path.name


def page(workspace: Workspace, dataset: str, recipe: str) -> Page:
    """Return the page of an experiment's packed model."""
    from xc_core.chain.reports import write_report
    from xc_core.metrics.evaluation import Evaluation

    evaluation = workspace.open(Evaluation, dataset, recipe)
    settings = flat({"recipe": recipe, **_settings(workspace, dataset, recipe)})
    files = [*pictures(evaluation.folder), evaluation.report_file, write_report(workspace, dataset, recipe)]
    note = f"The model of recipe `{recipe}` for `{dataset}`, packed and registered as `{model_name(dataset)}`."
    return Page(figures(evaluation.report), settings, files, DataVersion.of(workspace, dataset), note)


def _settings(workspace: Workspace, dataset: str, recipe: str) -> dict[str, Any]:
    settings = plain(workspace.params.experiment(dataset, recipe).recipe)
    return {"settings": settings} if isinstance(settings, dict) else {}


def figures(report: dict[str, Any]) -> dict[str, float]:
    """Return metrics, intervals, recall by label frequency, calibration and index recall, as MLflow names them."""
    out = {name: float(value) for name, value in report["metrics"].items() if value is not None}
    for name, ends in report.get("intervals", {}).items():
        out |= {
            f"{name}_{end}": float(value) for end, value in zip(("low", "high"), ends, strict=True) if value is not None
        }
    for name, bin_figures in report.get("bins", {}).items():
        if bin_figures.get("recall_at_5") is not None:
            out[f"{name}_recall_at_5"] = float(bin_figures["recall_at_5"])
    if calibration := report.get("calibration"):
        half = {f"{name}_at_probability_half": value for name, value in at_least(calibration, 0.5).items()}
        known = {"calibration_error": calibration["error"], **half}
        out |= {name: float(value) for name, value in known.items() if value is not None}
    return out | {f"index_recall_{name}": float(value) for name, value in report.get("index_recall", {}).items()}


def log_page(client: Any, run_id: str, model_id: str, page: Page, origin: Origin) -> None:
    """Log what the page of a registered model shows, to its run and to the model: figures, settings, plots, data."""
    import mlflow

    log_figures(client, run_id, {}, page.params)
    metrics = {name: value for name, value in page.metrics.items() if math.isfinite(value)}
    mlflow.log_metrics(metrics, run_id=run_id, model_id=model_id)
    if page.data is not None:
        log_data(client, run_id, page.data, "training")
    for path in page.plots:
        client.log_artifact(run_id, str(path), None if page.place(path) == path.name else "plots")
    client.set_tag(run_id, NOTE, f"{page.note}\n\n{mlflow_plots(run_id, map(page.place, page.plots))}")
    with temporary_folder() as scratch:
        for name, content in origin.files.items():
            path = scratch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
        client.log_artifacts(run_id, str(scratch), FOLDER)


def description(
    recipe: str, content: Page, tags: Mapping[str, str], verdict: Verdict, run: Logged | None = None
) -> str:
    """Return the description of a version with these tags, in Markdown; ``run`` has its report and its plots."""
    metrics = content.metrics
    rows = [
        f"| {titled(name)} | {metrics[name]:.2f} | {_interval(metrics, name)} |"
        for name in _HEADLINE
        if name in metrics
    ]
    parts = [f"Recipe `{recipe}`. Figures on test documents, in percent.", ""]
    parts += ["| metric | value | 95 % interval |", "| --- | ---: | --- |", *map(_spaced, rows), ""]
    parts += [*_report_links(content, run), *_origin_lines(tags)]
    parts += ["", f"**Gate**: {escaped(verdict.documents)}", "", *map(_spaced, verdict.table().splitlines())]
    parts += ["", overruled(tags)] if "overruled_because" in tags else []
    parts += ["", mlflow_plots(run.run, map(content.place, content.plots))] if run else []
    return "\n".join(parts)


def overruled(tags: Mapping[str, str]) -> str:
    """Return who overruled the gate, when and why, in Markdown; ``tags`` are those of ``xc promote --reason``."""
    who, when, reason = (tags[f"overruled_{name}"] for name in ("by", "at", "because"))
    return f"{_BY_HAND} {escaped(who)}, {when}: {escaped(_shortened(reason))}"


def with_reason(text: str, tags: Mapping[str, str]) -> str:
    """Return the page of a version with ``overruled`` at its top, in place of an earlier reason: tags have one too."""
    rest = re.sub(rf"^{re.escape(_BY_HAND)} .*\n*", "", text, flags=re.MULTILINE)
    return f"{overruled(tags)}\n\n{rest}".strip()


def _report_links(content: Page, run: Logged | None) -> list[str]:
    """Return the link to the HTML report in the model's run."""
    pages = [path.name for path in content.plots if path.suffix == ".html"]
    return [f"- report: {markdown(name, mlflow_own(run.experiment, run.run, name))}" for name in pages] if run else []


def _spaced(row: str) -> str:
    """Return the row of a Markdown table with space between its columns: MLflow draws them without any."""
    return row if row.startswith("| ---") else row.replace(" | ", " &nbsp;&nbsp; | ")


def _shortened(text: str) -> str:
    """Return the beginning of a long text, such as a list of changed files; the tag has more of it."""
    return text if len(text) <= _MAX_TAG_SHOWN else f"{text[:_MAX_TAG_SHOWN]}..."


def _origin_lines(tags: Mapping[str, str]) -> list[str]:
    lines = [
        f"- {title}: {markdown(_shortened(tags[name]), tags.get(f'{name}_url'))}"
        for name, title in ORIGIN.items()
        if name in tags
    ]
    asset = tags.get("dagster_asset_url")
    return [*lines, *([f"- Dagster asset: {markdown('model', asset)}"] if asset else [])]


def _interval(metrics: dict[str, float], name: str) -> str:
    ends = [metrics.get(f"{name}_{end}") for end in ("low", "high")]
    return "-" if None in ends else f"{ends[0]:.2f} to {ends[1]:.2f}"
