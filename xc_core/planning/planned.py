"""Plans: what the stages of a recipe cost on a data set, here or on a recorded GPU, and whether this machine can do it.

Rates are measured once per recipe, data and machine, and kept in ``.xc/plan``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from xc_core import memory
from xc_core.chain.costs import gigabytes, machine
from xc_core.chain.experiment import Experiment
from xc_core.chain.fingerprints import input_folder
from xc_core.chain.runner import run_stage
from xc_core.chain.workspace import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.tokens import Tokenised
from xc_core.devices import CPU, using
from xc_core.encoders import build_encoder
from xc_core.params import in_use
from xc_core.planning.budget import training_seconds
from xc_core.planning.data_size import DataSize
from xc_core.planning.estimator import Cost, Estimator
from xc_core.planning.pilots import PilotSource, Rates, Timed, measure_rates
from xc_core.planning.stage_bytes import held_bytes, written_bytes
from xc_core.planning.stage_costs import Case
from xc_core.planning.step_memory import PROCESS_BYTES, activation_bytes, keeps_activations
from xc_core.progress import optional, report
from xc_core.recipes import Recipe, find_recipe
from xc_core.train.activations import twice

_FORMAT: Final = 5
"""Format of the rates that are kept; those of another format are measured again."""
_MAX_WIDTH: Final = 65_536
"""Width of vectors that no encoder exceeds."""


@dataclass(frozen=True)
class Subject:
    """A recipe, its changes, and the data that it is planned for."""

    base: str
    changes: dict[str, Any]
    world: DataSize
    experiment: Experiment | None = None
    """The experiment of a data set that is there; None for sizes alone."""

    @property
    def title(self) -> str:
        """What is planned, in words."""
        return f"{self.base} with changes" if self.changes else self.base

    @property
    def recipe(self) -> Recipe:
        """The recipe with its changes."""
        return find_recipe(self.base).changed(self.changes)

    @classmethod
    def of_experiment(cls, workspace: Workspace, dataset: str, base: str, changes: dict[str, Any]) -> Subject:
        """Return the recipe ``base`` with ``changes`` on a dataset, which is read and tokenised if that is due.

        As in a training, params.yaml gets the tokenizer of the encoder, if that is known.
        """
        recipe = find_recipe(base).changed(changes)
        workspace.params.declare_tokenizers(dataset, [recipe.encoder.encoder.tokenizer])
        experiment = Experiment(workspace.params.dataset(dataset), recipe)
        for stage in ("corpus", "tokens"):
            run_stage(workspace, stage, dataset)
        return cls(base, changes, world_of(workspace, experiment), experiment)


def world_of(workspace: Workspace, experiment: Experiment) -> DataSize:
    """Return the size of an experiment's data; raise MissingError if it is not tokenised."""
    corpus = workspace.open(Corpus, experiment.dataset.name)
    tokens = Tokenised.open(input_folder(workspace, "tokens", experiment))
    return DataSize.of(corpus, tokens, experiment.recipe.encoder)


def rates_of(workspace: Workspace, subject: Subject, *, again: bool = False) -> Rates:
    """Return the rates of an earlier call on this machine, or measure and keep them."""
    path = workspace.state / "plan" / f"{subject.base}-{_key(workspace, subject)}.json"
    if not again:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # there are none, or they are damaged
            rates = Rates.from_json(path.read_text("utf-8"))
            report("plan: using the rates of an earlier call; --force measures again")
            return rates
    rates = _measure_rates(workspace, subject)
    with optional("the rates are not kept"):
        workspace.write(path, rates.as_json())
    return rates


def _key(workspace: Workspace, subject: Subject) -> str:
    """Return a digest of what rates depend on. For sizes alone: lengths of texts, not numbers of documents."""
    world, recipe = asdict(subject.world), subject.recipe
    if subject.experiment is not None:
        data: Any = workspace.digest("corpus", subject.experiment.dataset.name)
    else:
        small = {name: min(world[name], 100_000) for name in ("train", "test", "labels")}
        data = [small, world["document_tokens"], world["label_tokens"], world["pairs"]]
    settings = {stage: getattr(recipe, stage) for stage in recipe.stages()}
    short = [] if keeps_activations(_cpu_case(subject)) else ["texts are encoded twice"]
    content = json.dumps([_FORMAT, data, in_use(settings), machine(), *short], default=str, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@using(CPU)
def _measure_rates(workspace: Workspace, subject: Subject) -> Rates:
    world, experiment = subject.world, subject.experiment
    subject.recipe.require()  # before the first stage, as in a training: the packages count in the memory of all stages
    if experiment is None:
        source = PilotSource.made_up(world, subject.recipe.encoder.encoder.tokenizer)
        return measure_rates(workspace, subject.base, subject.changes, source)
    corpus = workspace.open(Corpus, experiment.dataset.name)
    rates = measure_rates(workspace, subject.base, subject.changes, PilotSource.of_corpus(corpus, world))
    return replace(rates, timed=Timed(world, training_seconds(workspace, experiment)))


def costs_of(subject: Subject, rates: Rates, processes: int = 1) -> list[Cost]:
    """Return the cost of each stage of the subject on this machine's CPU, for each of ``processes``."""
    return Estimator(subject.recipe, rates, memory.total_bytes()).costs(subject.world, processes)


def _cpu_case(subject: Subject) -> Case:
    return Case(subject.recipe, subject.world, 0, memory=memory.total_bytes())  # a step does not depend on the width


def sparing_note(subject: Subject) -> str:
    """Return that M1 will encode texts twice on this machine's CPU for want of memory; empty if it will not."""
    case = _cpu_case(subject)
    return "" if keeps_activations(case) else f"encoder: {twice(activation_bytes(case), case.memory)}"


def obstacles(workspace: Workspace, experiment: Experiment) -> list[str]:
    """Return why a training cannot end on this machine: memory or disk, from the formulas alone; nothing is timed.

    Raises MissingError if the data is not tokenised.
    """
    recipe, world = experiment.recipe, world_of(workspace, experiment)
    limit, free = memory.total_bytes(), shutil.disk_usage(workspace.home(experiment.dataset.name)).free
    widest = Case(recipe, world, _MAX_WIDTH, memory=limit)
    if held_bytes(widest)[1] + PROCESS_BYTES <= limit and written_bytes(widest) <= free:
        return []  # whatever the encoder is, so it need not be loaded
    tokens = Tokenised.open(input_folder(workspace, "tokens", experiment))
    width = build_encoder(recipe.encoder.encoder, tokens.tokenizer.vocabulary_size, recipe.encoder.seed).width
    case = Case(recipe, world, width, memory=limit)
    lines = []
    stage, held = held_bytes(case)
    if held + PROCESS_BYTES > limit:
        needed = gigabytes(held + PROCESS_BYTES)
        lines.append(f"the stage {stage} needs about {needed} of memory, and this machine has {gigabytes(limit)}")
    if (written := written_bytes(case)) > free:
        lines.append(f"the stages write about {gigabytes(written)}, and {gigabytes(free)} of the disk are free")
    return lines
