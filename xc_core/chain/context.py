"""The context that a stage's code receives: its settings, its inputs as typed artefacts, the folder to build in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from xc_core.artifacts import Build
from xc_core.errors import ConfigError
from xc_core.progress import report

S = TypeVar("S")
A = TypeVar("A", bound="Artefact", covariant=True)


class Artefact(Protocol):
    """A type of artefact: it opens and verifies its own folder, and nobody else knows its files."""

    kind: ClassVar[str]
    """The stage that makes it."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open and verify the artefact at ``folder``; raises MissingError, CorruptError."""


@dataclass(frozen=True)
class Run:
    """One run of a stage: its partition, and its files on this machine."""

    dataset: str
    recipe: str
    """Empty for a stage that runs per dataset."""
    raw: Path
    """The dataset's source files."""
    checkpoints: Path
    """Folder for checkpoints of this stage and partition."""
    fingerprint: str
    """Hash of everything that the result depends on; a checkpoint with another fingerprint is not used."""
    check: Callable[[], None]
    """Raises MovedError if parameters or inputs have changed since the stage started: its result would not be kept."""

    @property
    def title(self) -> str:
        """Dataset and recipe, for people."""
        return f"{self.dataset} / {self.recipe}" if self.recipe else self.dataset


@dataclass(frozen=True)
class ExperimentInputs:
    """Inputs of a stage that reads all experiments of a dataset (leaderboard)."""

    recipes: list[str]
    open: Callable[[str, type[Any]], Any]
    """Opens an artefact of a recipe; raises MissingError if there is none or it is out of date."""
    costs: Callable[[str], dict[str, dict[str, float]]]
    """Costs of each stage of a recipe."""
    machines: Callable[[str], set[str]]
    """The machines that these costs were measured on."""


@dataclass(frozen=True)
class Context(Generic[S]):
    """A stage's settings, inputs and output."""

    settings: S
    run: Run
    build: Build
    """The artefact that is being built."""
    costs: dict[str, float]
    """Figures that differ from run to run (seconds, latency); kept outside the artefact."""
    inputs: dict[str, Path]
    """Folder of each declared input."""
    previous: Path
    """The folder of this stage's present artefact, for a refresh."""
    experiments: ExperimentInputs | None = None

    def read(self, artefact: type[A]) -> A:
        """Open an input; raise ConfigError if the stage does not declare it."""
        if artefact.kind not in self.inputs:
            raise ConfigError(
                f"a stage that reads {artefact.kind}, which it does not declare",
                expected=f"one of its inputs: {', '.join(self.inputs) or 'none'}",
                do="add the input to the deps of the stage in xc_core/chain/registry.py",
            )
        return artefact.open(self.inputs[artefact.kind])

    def report(self, line: str) -> None:
        """Report one line."""
        report(line)
