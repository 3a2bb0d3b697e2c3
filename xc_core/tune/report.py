"""A study in words: its best trials, the command that trains the winner, and a record for the lab notes."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Any, Final

from xc_core.chain.params_file import nested
from xc_core.metrics.names import stored
from xc_core.metrics.paired import PairedDifference
from xc_core.params import deep_merged, dotted, option_text
from xc_core.tune.metric import FIGURES, OBJECTIVE
from xc_core.tune.record import StudyRecord, TrialOutcome, TrialRecord
from xc_core.visible import counted

_TUNED: Final = "-tuned"
"""What is added to the name of a study for the recipe that its best trial becomes."""
_SHOWN: Final = 10
"""Trials in the printed table."""


def table(record: StudyRecord, limit: int = _SHOWN) -> str:
    """Return the ``limit`` best trials as a Markdown table: objective, figures, settings, seconds.

    If they change one setting each, return all, in order, with their differences from the recipe as it is.
    """
    if record.planned:
        return _of_changes(record)
    names = list(record.asked["space"])
    head = ["trial", "objective", *FIGURES, *names, "used", "seconds"]
    return _markdown(head, [_row(trial, names) for trial in record.ranked()[:limit]])


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [_aligned(head, widths), "| " + " | ".join("-" * width for width in widths) + " |"]
    return "\n".join([*lines, *(_aligned(row, widths) for row in rows)])


def _row(trial: TrialRecord, names: list[str]) -> list[str]:
    figures = [f"{trial.figures[stored(name)]:.2f}" for name in FIGURES]
    settings = [option_text(trial.values[name]) for name in names]
    return [str(trial.number), f"{trial.value:.2f}", *figures, *settings, trial.served, f"{trial.seconds:.0f}"]


def _of_changes(record: StudyRecord) -> str:
    """Return a row per changed setting: its value before and now, differences with intervals, relative seconds."""
    before, base = record.asked["base values"], record.baseline
    rows = []
    for trial in record.trials:
        if base is not None and trial.gains:
            ((name, value),) = trial.values.items()
            seconds, base_seconds = trial.stages_seconds, base.stages_seconds
            time = f"{seconds / base_seconds:.2f}" if seconds is not None and base_seconds else "-"
            gains = [_interval(trial.gain(stored(figure))) for figure in FIGURES]
            rows.append([str(trial.number), name, option_text(before.get(name)), option_text(value), *gains, time])
    return _markdown(["trial", "setting", "recipe", "value", *FIGURES, "time"], rows)


def _interval(gain: PairedDifference) -> str:
    return f"{gain.points:+z.2f} [{gain.low:+z.2f}, {gain.high:+z.2f}]"


def changes(record: StudyRecord) -> list[str]:
    """Return what a study of single changes shows, as paragraphs: the recipe as it is, and which changes differ."""
    base, compared = record.baseline, [trial for trial in record.trials if trial.gains]
    if base is None:
        return []
    figures = ", ".join(f"{name} {base.figures[stored(name)]:.2f}" for name in FIGURES)
    spent = "" if base.stages_seconds is None else f", {base.stages_seconds:.0f} s for all stages (time 1.00)"
    lines = [f"the recipe as it is, trial {base.number}: {record.metric} {base.value:.2f}; {figures}{spent}"]
    for words, sign in (("above", 1), ("below", -1)):
        found = [text for trial in compared if (text := _clear(trial, sign))]
        lines.append(f"intervals {words} 0: {'; '.join(found) or 'none'}")
    count = len(compared) * len(FIGURES)
    by_chance = f"about {count / 20:.1f} of these {counted(count, 'interval')} would exclude 0 by chance"
    lines.append(f"{by_chance} if no setting mattered; an interval is that of other documents, not of other seeds")
    lines.append("figures that fewer than six documents change are left out")
    if (best := record.winner) is None:
        return [*lines, f"no single change is clearly better by the {record.metric}"]
    gain = f"{record.metric} {_interval(best.gain(OBJECTIVE))}"
    return [*lines, f"the best change that is clearly better is trial {best.number}, {_setting(best)}: {gain}"]


def _winners(record: StudyRecord) -> list[TrialRecord]:
    return [] if record.winner is None else [record.winner]


def _clear(trial: TrialRecord, sign: int) -> str:
    """Return the change of a trial and the figures whose interval excludes 0 on one side; empty if there is none."""
    gains = {name: trial.gain(stored(name)) for name in FIGURES}
    names = [name for name, gain in gains.items() if gain.clear and gain.points * sign > 0]
    return f"{_setting(trial)} ({', '.join(names)})" if names else ""


def _setting(trial: TrialRecord) -> str:
    return ", ".join(f"{name}={option_text(value)}" for name, value in trial.values.items())


def _aligned(cells: list[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def command(record: StudyRecord, trial: TrialRecord) -> str:
    """Return the command that trains the experiment of a trial, with all stages and all epochs."""
    settings = winner(record, trial)
    name = record.name[: 64 - len(_TUNED)].rstrip("-") + _TUNED  # 64: the longest name of a recipe
    parts = ["xc", "train", "--dataset", record.dataset, "--recipe", name]
    parts += ["--base", str(record.asked["base"]), "--budget", "none"]
    return shlex.join(
        [*parts, *(part for name, value in settings.items() for part in ("--set", f"{name}={option_text(value)}"))]
    )


def winner(record: StudyRecord, trial: TrialRecord) -> dict[str, Any]:
    """Return all settings of a trial that differ from the base, by dotted name, as the trial merged them."""
    return dotted(deep_merged(nested(record.asked["changes"]), nested(trial.values)))


def summary(record: StudyRecord) -> str:
    """Return the whole result as the command prints it."""
    best = record.best
    counts = ", ".join(f"{number} {state}" for state, number in states(record).items()) or "none yet"
    lines = [f"study {record.name} of {record.dataset}: {record.state}; trials: {counts}; {record.seconds:.0f} s"]
    if best is None:
        return lines[0]
    lines += [
        f"objective: {record.metric}, in percent, on {counted(best.documents, 'validation document')} that no score "
        "was fitted on",
        table(record),
    ]
    if record.planned:
        trained = [f"train it:  {command(record, one)}" for one in _winners(record)]
        return "\n".join([*lines, *changes(record), *trained])
    if record.importances:
        shown = ", ".join(f"{name} {share:.2f}" for name, share in record.importances.items())
        lines.append(f"settings that matter (PED-ANOVA): {shown}")
    if (baseline := record.baseline) is not None and baseline.value is not None and best.value is not None:
        lines.append(
            f"the recipe's own settings, trial {baseline.number}: {baseline.value:.2f}; "
            f"the best: {best.value - baseline.value:+.2f}"
        )
    return "\n".join([*lines, f"train it:  {command(record, best)}"])


def states(record: StudyRecord) -> dict[str, int]:
    """Return the number of trials in each state, without those that repeat another; states without trials left out."""
    counts = Counter(trial.state.value for trial in record.trials if not trial.repeats)
    return {state.value: counts[state.value] for state in TrialOutcome if counts[state.value]}


def note(record: StudyRecord, command_line: str) -> str:
    """Return the study as a lab note in Markdown; ``command_line`` is the one that ran it."""
    best, origin = record.best, record.origin
    space = "\n".join(f"{name}: {json.dumps(spec)}" for name, spec in record.asked["space"].items())
    parts = [
        f"# Study {record.name} of {record.dataset}",
        f"*{origin['date'][:10]}.*",
        f"**Question.** {_question(record)}",
        f"**Command**, at commit {origin['commit'][:12]}, on {origin['machine']}:\n\n```\n{command_line}\n```",
        f"**Space.**\n\n```yaml\n{space}\n```",
        f"**Result.** {_counts(record)}",
    ]
    if best is not None:
        parts += [table(record, len(record.trials)), *_findings(record, best)]
    return "\n\n".join([*parts, *_without_figures(record), "**Conclusion.** (to be written)"]) + "\n"


def _question(record: StudyRecord) -> str:
    where = f"of `{record.asked['recipe']}` on {record.dataset}"
    if record.planned:
        return f"Which settings {where} change the figures on validation documents, each changed alone?"
    return f"Which settings {where} have the best {record.metric} on validation documents?"


def _counts(record: StudyRecord) -> str:
    counts = ", ".join(f"{number} {state}" for state, number in states(record).items())
    asked = record.asked
    return (
        f"Trials: {counts or 'none'}. Sampler {asked['sampler']}, seed {asked['seed']}, pruner: {asked['pruner']}; "
        f"{record.seconds:.0f} s in all. Figures are percent on validation documents that the scores and the fusion "
        "have not seen; no test document was read for them."
    )


def _findings(record: StudyRecord, best: TrialRecord) -> list[str]:
    if record.planned:
        trained = [f"It is trained by\n\n```\n{command(record, one)}\n```" for one in _winners(record)]
        return ["\n".join(f"- {line}" for line in changes(record)), *trained]
    matter = ", ".join(f"`{name}` {share:.2f}" for name, share in record.importances.items())
    lines = [f"What matters (PED-ANOVA): {matter}."] if matter else []
    baseline = record.baseline
    if baseline is not None and baseline.value is not None and best.value is not None:
        gain = f"{best.value - baseline.value:+.2f}"
        lines.insert(0, f"Trial {baseline.number} has the recipe's own settings; the best trial is {gain} above it.")
    return [*lines, f"The best trial, {best.number}, is trained by\n\n```\n{command(record, best)}\n```"]


def _without_figures(record: StudyRecord) -> list[str]:
    """Return the trials without figures, one line each."""
    others = [trial for trial in record.ended if trial.state is not TrialOutcome.DONE]
    lines = [
        f"- trial {trial.number} {trial.state.value} ({trial.why}): "
        + ", ".join(f"{name} {option_text(value)}" for name, value in trial.values.items())
        for trial in others
    ]
    return ["Trials without figures:\n\n" + "\n".join(lines)] if lines else []
