"""The gate: compares a new model with the champion on the acceptance set, line by line. It moves no alias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from assets.markdown import escaped
from xc_core.errors import RefusedError
from xc_core.metrics.names import titled
from xc_core.visible import counted

if TYPE_CHECKING:
    from assets.release.best import Best
    from xc_core.chain.dataset import ReleaseConfig
    from xc_core.errors import XCError
    from xc_core.infer.acceptance import Measured
    from xc_core.metrics.paired import PairedDifference
    from xc_core.recipes.settings import ModelSettings

OPENS: Final = "opens and answers"
OVERALL: Final = ("P_at_5", "PSP_at_5")
_QUICK_MS: Final = 20.0
"""A single text that takes no longer than this is fast enough, however fast the champion is."""
_SMALL_MB: Final = 10.0
"""A model of at most this size is small enough."""
_TRAIN: Final = "train a better model"
_INDEX: Final = "use a more exact index (--set scores.SCORE.index=exact)"
_LATENCY: Final = (
    "if the machine was busy, run this again, because the latency is measured again; otherwise use a smaller encoder "
    "or raise release.max_slower"
)
_SIZE: Final = "use a smaller encoder or raise release.max_larger"


@dataclass(frozen=True)
class Line:
    """One thing that the gate looks at."""

    name: str
    passed: bool
    found: str
    limit: str = "-"
    do: str = _TRAIN
    """What to do if it failed."""

    @property
    def result(self) -> str:
        """``passed`` or ``failed``."""
        return "passed" if self.passed else "failed"


@dataclass(frozen=True)
class Verdict:
    """What the gate found."""

    lines: tuple[Line, ...]
    documents: str
    """The acceptance set, in words."""
    best: Best | None = None
    """The best champions if this model becomes one; None if it was not measured."""

    @property
    def passed(self) -> bool:
        """True if no line failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Line, ...]:
        """The lines that failed."""
        return tuple(line for line in self.lines if not line.passed)

    @property
    def reason(self) -> str:
        """The lines that failed, in words."""
        return "; ".join(f"{line.name}: {line.found}, limit {line.limit}" for line in self.failed)

    @property
    def summary(self) -> str:
        """What was found of the first metric."""
        return next((f"{line.name} {line.found}" for line in self.lines if line.name == "P@5"), "nothing to compare")

    def refusal(self, dataset: str, version: int) -> RefusedError:
        """Return the error of the version, with what to do about each line that failed."""
        advice = "; ".join(dict.fromkeys(line.do for line in self.failed))
        return RefusedError(
            f"version {version} refused by the gate: {self.reason}",
            expected="a model that passes every line; the champion is unchanged",
            do=f'{advice}. To overrule the gate: xc promote --dataset {dataset} --version {version} --reason "WHY"',
        )

    def rows(self) -> list[dict[str, str]]:
        """Return the lines as rows of a table, with what to do about those that failed."""
        return [
            {
                "line": line.name,
                "found": line.found,
                "limit": line.limit,
                "result": line.result,
                "do": "" if line.passed else line.do,
            }
            for line in self.lines
        ]

    def table(self) -> str:
        """Return the lines as a Markdown table, with what failed in bold; a message of a model is shown as it is."""
        rows = ["| line | found | limit | result |", "| --- | --- | --- | --- |"]
        for line in self.lines:
            result = line.result if line.passed else f"**{line.result}**"
            rows.append(f"| {line.name} | {escaped(line.found)} | {line.limit} | {result} |")
        return "\n".join(rows)


def refused(name: str, error: RefusedError) -> Line:
    """Return the line of a model that could not be measured."""
    return Line(name, False, error.found, error.expected, error.do)


def without_champion(model: Measured, champion: Measured | None, limits: ModelSettings) -> Iterator[Line]:
    """Yield the lines that need no champion; the recall of its indexes is shown if there is one."""
    yield Line(OPENS, True, f"{counted(len(model.figures.num['P_at_1']), 'text')} answered in a clean process")
    recall, minimum = model.recall, limits.min_index_recall
    compared = "" if champion is None else f" against {champion.recall:.3f}"
    yield Line("index recall", recall >= minimum, f"{recall:.3f}{compared}", f"at least {minimum:g}", _INDEX)


def against(model: Measured, champion: Measured, limits: ModelSettings, release: ReleaseConfig) -> Iterator[Line]:
    """Yield the lines that compare a model with the champion, figures by a paired bootstrap over documents."""
    from xc_core.metrics.names import RECALL
    from xc_core.metrics.paired import differences

    change_of = differences(model.figures, champion.figures)
    ours, theirs = model.figures.total(), champion.figures.total()
    for name in OVERALL:
        passed = change_of[name].points >= -limits.max_drop  # False if it is not a number
        yield Line(
            titled(name), passed, _change_text(ours[name], theirs[name], change_of[name]), _drop_limit(limits.max_drop)
        )
    limit = release.max_bin_drop
    for name, metric in RECALL.items():
        lost = change_of[metric].points < -limit and change_of[metric].clear
        yield Line(
            f"{name} recall@5",
            not lost,
            _change_text(ours[metric], theirs[metric], change_of[metric]),
            _drop_limit(limit),
        )
    yield from _cost_lines(model, champion, release)


def against_best(metric: str, model: Measured, best: Measured, version: str, limits: ModelSettings) -> Line:
    """Return the line that compares a model with the best champion so far, so that small losses do not add up."""
    from xc_core.metrics.paired import differences

    difference = differences(model.figures, best.figures)[metric]
    change = _change_text(model.figures.total()[metric], best.figures.total()[metric], difference)
    limit = f"{_drop_limit(limits.max_drop)} than version {version}, the best champion so far on this acceptance set"
    return Line(_best_line_name(metric), difference.points >= -limits.max_drop, change, limit)


def not_compared(metric: str) -> Line:
    """Return the line, which passes, of a best champion so far that was deleted."""
    return Line(_best_line_name(metric), True, "not compared: the best champion so far was deleted from the registry")


def best_unknown(metric: str, version: str, error: XCError, do: str) -> Line:
    """Return the line, which fails, of a best champion so far that is registered but cannot be measured."""
    expected = "a version that opens; try again, repair it, or delete the version"
    found = f"version {version} cannot be measured: {error.found}"
    return Line(_best_line_name(metric), False, found, expected, do)


def _best_line_name(metric: str) -> str:
    return f"{titled(metric)} against the best"


def _cost_lines(model: Measured, champion: Measured, release: ReleaseConfig) -> Iterator[Line]:
    ours, theirs = model.costs, champion.costs
    limit = max(release.max_slower * theirs.latency_p50_ms, _QUICK_MS)
    passed, text = ours.latency_p50_ms <= limit, f"{ours.latency_p50_ms:.1f} ms against {theirs.latency_p50_ms:.1f}"
    yield Line("latency", passed, text, f"at most {limit:.1f} ms", _LATENCY)
    limit = max(release.max_larger * theirs.megabytes, _SMALL_MB)
    text = f"{ours.megabytes:.1f} MB against {theirs.megabytes:.1f}"
    yield Line("size", ours.megabytes <= limit, text, f"at most {limit:.1f} MB", _SIZE)


def _change_text(ours: float, theirs: float, difference: PairedDifference) -> str:
    interval = f"{difference.points:+z.2f} [{difference.low:+z.2f}, {difference.high:+z.2f}]"
    return f"{ours:.2f} against {theirs:.2f} ({interval})"


def _drop_limit(drop: float) -> str:
    return f"at most {counted(drop, 'point')} less"
