"""The space of a study: for each setting, the values that trials may draw. One line per dotted setting, as in --set."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xc_core.chain.registry import STAGES
from xc_core.errors import ConfigError, MissingError, nearest, shown
from xc_core.outside import text_of, yaml_of
from xc_core.params import dotted
from xc_core.visible import counted

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_RANGES: Final = ("range", "log")
_KEYS: Final = (*_RANGES, "step", "choices")
_NAMES: Final = list(STAGES)
TRIAL_STAGES: Final = tuple(
    STAGES[name] for name in _NAMES[: _NAMES.index("fusion") + 1] if STAGES[name].scope == "experiment"
)
"""The stages of a trial, whose settings a space may hold: those of an experiment, up to the fusion."""
_FIXES_FIGURES: Final = {
    "encoder.refit": "the documents that trials are judged by",
    "classifier.refit": "the documents that trials are judged by",
    "classifier.enough": "the documents that trials are judged by",
    "fusion.rows": "the documents that trials are judged by",
}
"""Settings that would change what the figures of a trial are measured on, so trials could not be compared."""
_ADVICE: Final = "give at least two values; --set fixes a setting for all trials"
_EXAMPLE: Final = "classifier.table.lr: {log: [0.001, 0.1]}"


@dataclass(frozen=True)
class Choices:
    """Some values, without an order."""

    values: tuple[Any, ...]

    @property
    def probes(self) -> tuple[Any, ...]:
        """Values to check before the first trial: all."""
        return self.values

    @property
    def size(self) -> int | None:
        """The number of values."""
        return len(self.values)

    def distribution(self) -> BaseDistribution:
        """Return Optuna's form; it draws the texts of ``label``."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([_label(value) for value in self.values])

    def label(self, value: Any) -> Any:
        """Return how a value is stored in the study; None if it is not one of the choices."""
        return next((_label(choice) for choice in self.values if _label(choice) == _label(value)), None)

    def value(self, label: Any) -> Any:
        """Return the value of a stored label."""
        return next(choice for choice in self.values if _label(choice) == label)

    def typed(self, present: Any) -> Choices:
        """Return the choices themselves."""
        return self

    def listed(self, name: str) -> Choices:
        """Return the choices themselves."""
        return self

    def plain(self) -> Any:
        """Return what the space file has."""
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    integer: bool = False

    @property
    def probes(self) -> tuple[Any, ...]:
        """Values to check before the first trial: both ends, as fractions if trials draw fractions."""
        return (self.low, self.high) if self.integer else (float(self.low), float(self.high))

    @property
    def size(self) -> int | None:
        """The number of values; None for a continuous range."""
        step = self.step or (1 if self.integer else None)
        return None if step is None else 1 + math.floor((self.high - self.low) / step + 1e-9)

    def distribution(self) -> BaseDistribution:
        """Return Optuna's form."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def label(self, value: Any) -> Any:
        """Return a value as it is stored in the study; None if it is not in the range."""
        if isinstance(value, bool) or not isinstance(value, int if self.integer else int | float):
            return None
        steps = (value - self.low) / self.step if self.step else 0.0
        return value if self.low <= value <= self.high and math.isclose(steps, round(steps), abs_tol=1e-9) else None

    def value(self, label: Any) -> Any:
        """Return the value of a stored label; a fraction drawn from a continuous range gets four digits.

        Optuna adds up steps: 0.1 + 2 * 0.1 is 0.30000000000000004, the same setting as 0.3.
        """
        if self.integer:
            return label
        return min(max(float(f"{label:.12g}" if self.step else f"{label:.4g}"), self.low), self.high)

    def typed(self, present: Any) -> Range:
        """Return the range with fractions if the setting's ``present`` value is one, even if its ends are whole."""
        return replace(self, integer=self.integer and not isinstance(present, float))

    def listed(self, name: str) -> Choices:
        """Return the values of a range with a step; raise ConfigError, with the setting's name, for any other range."""
        if self.step is None:
            found, do = f"{name}: {shown(self.plain())}", f"list the values, {name}: [a, b], or give a range a step"
            raise ConfigError(found, expected="values that can be tried one at a time", do=do)
        return Choices(tuple(self.value(self.low + i * self.step) for i in range(self.size or 0)))

    def plain(self) -> Any:
        """Return what the space file has."""
        ends = {"log" if self.log else "range": [self.low, self.high]}
        return ends | ({"step": self.step} if self.step is not None else {})


@dataclass(frozen=True)
class Space:
    """The settings that trials draw, by dotted name, in alphabetical order."""

    settings: Mapping[str, Choices | Range]

    @classmethod
    def read(cls, path: Path, fewest: int = 2) -> Space:
        """Read a space file, in which a list has at least ``fewest`` values.

        Raises MissingError if there is none, ConfigError for anything that is no space, with the setting's name.
        """
        try:
            content = yaml_of(text_of(path), str(path))
        except FileNotFoundError as error:
            raise MissingError(
                f"no file {path}", expected="a space file", do=f"write one, a line per setting: {_EXAMPLE}"
            ) from error
        return cls.of(content, str(path), fewest)

    @classmethod
    def of(cls, content: Any, where: str = "the space", fewest: int = 2) -> Space:
        """Return the space that the ``content`` of a file describes.

        Raises ConfigError for anything that is no space, with the setting's name.
        """
        if not isinstance(content, dict) or not content:
            found = f"a {type(content).__name__}" if content else "no settings"
            raise ConfigError(found, expected=_EXAMPLE, do="write one line per setting", where=where)
        settings: dict[str, Choices | Range] = {}
        for name, spec in content.items():
            _check_name(name, where)
            settings[name] = _parse(spec, f"{where}: {name}", fewest)
        if twice := [name for name in settings if f"{name}.kind" in settings]:
            found = f"{twice[0]} and {twice[0]}.kind, which are the same setting"
            raise ConfigError(found, expected="one line per setting", do="drop one of them", where=where)
        return cls(dict(sorted(settings.items())))

    @property
    def size(self) -> int | None:
        """The number of combinations; None if a range is continuous."""
        sizes = [domain.size for domain in self.settings.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's form of every setting."""
        return {name: domain.distribution() for name, domain in self.settings.items()}

    def values(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a trial's stored labels."""
        return {name: self.settings[name].value(label) for name, label in labels.items()}

    def labels(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return values as a trial stores them; None if one of them is not in the space or missing."""
        labels = {name: domain.label(values[name]) for name, domain in self.settings.items() if name in values}
        return labels if len(labels) == len(self.settings) and None not in labels.values() else None

    def typed(self, present: Mapping[str, Any]) -> Space:
        """Return the space with ranges of fractions for settings whose ``present`` value is a fraction."""
        return Space({name: domain.typed(present.get(name)) for name, domain in self.settings.items()})

    def listed(self) -> Space:
        """Return the space with lists instead of ranges; raise ConfigError for a range that no step makes finite."""
        return Space({name: domain.listed(name) for name, domain in self.settings.items()})

    def plain(self) -> dict[str, Any]:
        """Return the content of the space file."""
        return {name: domain.plain() for name, domain in self.settings.items()}


def present(settings: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present values of the settings ``names`` in ``settings``, which hold all settings in plain form.

    The value of a part is its kind. A setting that the recipe does not have is missing from the result.
    """
    flat = dotted(settings)
    kinds = {name.removesuffix(".kind"): value for name, value in flat.items() if name.endswith(".kind")}
    return {name: flat[name] if name in flat else kinds[name] for name in names if name in flat or name in kinds}


def _label(value: Any) -> Any:
    """Return how Optuna stores a choice: numbers and texts as they are, anything else as JSON."""
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else json.dumps(value)


def _check_name(name: object, where: str) -> None:
    """Raise ConfigError unless ``name`` is a setting of a stage that runs before the evaluation."""
    if not isinstance(name, str) or len(name.split(".")) < 2 or not all(name.split(".")):
        raise ConfigError(f"{name!r}", expected="STAGE.FIELD, as in --set", do="fix the name", where=where)
    allowed = [stage.name for stage in TRIAL_STAGES]
    stage = name.split(".")[0]
    if stage in STAGES and stage not in allowed:
        after = STAGES[stage].scope == "experiment"
        raise ConfigError(
            f"{name}, a setting of the stage {stage}",
            expected=f"stages that validation figures depend on: {', '.join(allowed)}",
            do=f"drop it: {'trials end before that stage' if after else 'a study has one dataset'}",
            where=where,
        )
    if stage not in allowed:
        raise ConfigError(
            f"{name}{nearest(stage, allowed)}", expected=f"one of {', '.join(allowed)}", do="fix the name", where=where
        )
    if name in _FIXES_FIGURES:
        raise ConfigError(
            f"{name}, which changes {_FIXES_FIGURES[name]}",
            expected="settings under which trials can be compared",
            do=f"drop it, or fix it for all trials: --set {name}=VALUE",
            where=where,
        )


def _parse(spec: Any, where: str, fewest: int) -> Choices | Range:
    """Return the values of one setting; raise ConfigError if they cannot be understood."""
    if isinstance(spec, list):
        return _choices(spec, where, fewest)
    if not isinstance(spec, dict):
        raise ConfigError(
            f"{shown(spec)}", expected="a list of values, {range: [a, b]} or {log: [a, b]}", do=_ADVICE, where=where
        )
    for key in spec:
        if key not in _KEYS:
            found = f"{shown(key)}{nearest(key, _KEYS)}"
            raise ConfigError(found, expected=f"one of {', '.join(_KEYS)}", do="fix the name", where=where)
    if sum(key in spec for key in (*_RANGES, "choices")) != 1 or ("choices" in spec and "step" in spec):
        expected = "one of range, log and choices; step only with a range"
        raise ConfigError(", ".join(spec) or "nothing", expected=expected, do="drop one", where=where)
    return _choices(spec["choices"], where, fewest) if "choices" in spec else _range(spec, where)


def _choices(values: Any, where: str, fewest: int) -> Choices:
    labels: set[str] = set()
    for value in values if isinstance(values, list) else ():
        try:
            labels.add(json.dumps(_label(value)))
        except TypeError as error:  # a date, also in a list or mapping
            found = f"{value}, a date" if isinstance(value, date) else shown(value)
            expected = "numbers, texts, true, false and null, or lists and mappings of them"
            do = "write it in quotes if it is a text; no setting is a date"
            raise ConfigError(found, expected=expected, do=do, where=where) from error
    if len(labels) < fewest or len(labels) != len(values):
        expected = f"a list of at least {counted(fewest, 'value')}, each once"
        do = _ADVICE if fewest > 1 else "give each value once"
        raise ConfigError(f"{shown(values)}", expected=expected, do=do, where=where)
    return Choices(tuple(values))


def _range(spec: dict[str, Any], where: str) -> Range:
    log = "log" in spec
    ends, step = spec["log" if log else "range"], spec.get("step")
    numbers = [*ends, *([] if step is None else [step])] if isinstance(ends, list) and len(ends) == 2 else []
    valid = numbers and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
    if not valid or ends[0] >= ends[1]:
        raise ConfigError(
            f"{shown(spec)}", expected="two numbers, the lower one first", do="fix the numbers", where=where
        )
    if (log and (ends[0] <= 0 or step is not None)) or (step is not None and step <= 0):
        expected = "a step above 0, or log with numbers above 0 and without a step"
        raise ConfigError(f"{shown(spec)}", expected=expected, do="fix the numbers", where=where)
    found = Range(ends[0], ends[1], log, step, all(type(number) is int for number in numbers))
    if found.size == 1:
        do = f"lower the step, or give the values as a list; --set fixes a setting for all trials at {ends[0]}"
        raise ConfigError(f"{shown(spec)}", expected="a step that reaches a second value", do=do, where=where)
    return found
