"""The report on a model as one HTML page, without scripts and without anything from outside."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from xc_core.metrics.evaluation import FUSION
from xc_core.metrics.names import BINS, NARROW, RECALL_KS, titled
from xc_core.visible import cut

_TEMPLATE: Final = "page.html"
_HEADLINE: Final = (
    ("P_at_1", "the first label is true"),
    ("P_at_5", "share of the first five that is true"),
    ("nDCG_at_5", "the same, weighted by rank"),
    ("PSP_at_5", "rare labels weigh more"),
    ("R_at_10", "true labels among the first ten"),
)
_LONGEST: Final = 600
"""Characters shown of a text."""
_WIDEST: Final = 8
"""Width of a bar for 100 percent, in rem."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a report."""

    dataset: str
    recipe: str
    digest: str
    """Digest of the evaluation."""
    report: dict[str, Any]
    """The file ``report.json`` of the evaluation."""
    examples: list[dict[str, Any]]
    learnt: dict[str, str]
    """What each part of the model learnt from, in words."""
    card: dict[str, str]
    """Facts about the data, in words."""
    costs: dict[str, dict[str, float]]
    """Costs by stage."""
    machines: list[str]
    pictures: dict[str, bytes]
    """PNG files by title."""

    @property
    def scores(self) -> list[str]:
        """The names of the scores in the examples."""
        predicted = [label for example in self.examples for label in example["predicted"]]
        return list(dict.fromkeys(name for label in predicted for name in label.get("scores", {})))

    @property
    def ablation(self) -> dict[str, dict[str, float]]:
        """The rows of the ablation, the whole model first; the report has them by name."""
        return dict(sorted(self.report["ablation"].items(), key=lambda row: row[0] != FUSION))

    @property
    def latency(self) -> list[float]:
        """Median and 99th percentile of the milliseconds of a single text; empty if they were not measured."""
        spent = self.costs.get("evaluation", {})
        return [spent[name] for name in ("latency_p50_ms", "latency_p99_ms") if name in spent]

    def html(self) -> str:
        """Return the page; every text of the data is escaped, control characters are replaced."""
        from jinja2 import Environment

        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_visible)
        environment.filters |= {
            "figure": _figure,
            "plain": _plain,
            "count": _count,
            "interval": _interval,
            "width": _width,
            "metric": titled,
            "cut": cut,
            "base64": _base64,
        }
        template = environment.from_string(resources.files(__package__).joinpath(_TEMPLATE).read_text("utf-8"))
        return template.render(
            page=self, headline=_HEADLINE, columns=NARROW, bins=_bins(), longest=_LONGEST, calibrated=max(RECALL_KS)
        )


def _bins() -> list[tuple[str, str]]:
    return [(name, f"{low} or more" if high is None else f"{low} to {high}") for name, low, high in BINS]


def _visible(value: Any) -> Any:
    """Replace control characters, which a browser or a terminal may act on."""
    if not isinstance(value, str):
        return value
    printable = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in value)
    return type(value)(printable)  # markup stays markup


def _missing(value: Any) -> bool:
    return not isinstance(value, int | float) or not math.isfinite(value)


def _figure(value: Any) -> str:
    return "-" if _missing(value) else f"{value:.2f}"


def _plain(value: Any) -> str:
    return "-" if _missing(value) else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _count(value: Any) -> str:
    return "-" if _missing(value) else f"{int(value):,}"


def _interval(ends: Any) -> str:
    return f"[{_figure(ends[0])}, {_figure(ends[1])}]"


def _width(value: Any) -> str:
    return "0" if _missing(value) else f"{_WIDEST * min(max(value, 0), 100) / 100:.2f}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
