"""Estimates what the stages of a recipe cost: formulas (``stage_costs``, ``stage_bytes``) with the rates of pilots."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from xc_core.chain.registry import TRAIN_STAGES
from xc_core.planning.data_size import DataSize
from xc_core.planning.frozen import frozen_share, passes
from xc_core.planning.pilots import Pilot, Rates, short_epochs, slope_and_rest
from xc_core.planning.stage_bytes import COPIES, HELD, WRITTEN
from xc_core.planning.stage_costs import WORK, Case, clustering, searches, trained_documents
from xc_core.recipes import Recipe


@dataclass(frozen=True)
class CostLine:
    """Seconds of running time, bytes in memory, bytes on disk."""

    fixed: float
    rate: float
    imports: float = 0.0

    def at(self, work: float) -> float:
        """Return fixed costs and imports, and the rate times ``work``."""
        return self.imports + self.fixed + self.rate * work

    @classmethod
    def through(cls, points: list[tuple[float, float]]) -> CostLine:
        """Fit (work, cost) of the two largest pilots; what the smallest cost beyond that are imports."""
        rate, fixed = slope_and_rest(points[-2:] if len(points) > 1 else [(0.0, 0.0), points[0]])
        imports = points[0][1] - fixed - rate * points[0][0] if len(points) > 2 else 0.0
        return cls(fixed, rate, max(imports, 0.0))


@dataclass(frozen=True)
class Cost:
    """What a stage is estimated to cost."""

    stage: str
    seconds: float
    memory: float
    """Largest resident memory, bytes."""
    disk: float
    """Bytes that it writes and keeps."""


class Estimator:
    """Estimates the stages of a recipe from the rates of its pilots."""

    def __init__(self, recipe: Recipe, rates: Rates, memory: float = math.inf) -> None:
        """``memory``: that of the machine of the pilots, in bytes."""
        self.recipe, self.rates, self.memory = recipe, rates, memory
        self._pilots = [(pilot, Case(recipe, pilot.world, rates.width, memory=memory)) for pilot in rates.pilots]

    def costs(self, world: DataSize, processes: int = 1) -> list[Cost]:
        """Return the cost of every stage on a data set of this size, for each of ``processes`` that share the work."""
        case = Case(self.recipe, world, self.rates.width, processes, self.memory)
        return [
            Cost(name, self._seconds(name, case), self._memory(name, case), self._disk(name, case))
            for name in TRAIN_STAGES
        ]

    def _seconds(self, name: str, case: Case) -> float:
        line = self._line(name)
        encodes = name in ("encoder", "embeddings")  # texts are divided between the processes
        work = WORK[name](case) / (case.processes if encodes else 1)
        seconds = line.at(work) + sum(search.seconds(self.rates) for search in searches(case).get(name, []))
        if name == "encoder":
            if not case.fills_banks:  # the pilots did
                seconds = line.imports + line.fixed + case.keeps_states * self._frozen_seconds(WORK["encoder"](case))
            seconds += self.refresh(case) + self._repeated_frozen(case)
        return seconds + self._step_seconds_per_process(name, case)

    def _line(self, name: str) -> CostLine:
        """Return the seconds of a stage by its work, without searches, refreshes and the steps of a training."""
        return CostLine.through(
            [(WORK[name](case), self._remaining_seconds(name, pilot, case)) for pilot, case in self._pilots]
        )

    def _step_seconds_per_process(self, name: str, case: Case) -> float:
        """Return the seconds of a process in the steps of a training; each computes the whole table that M1 trains."""
        steps, settings = self._step_seconds(name, case), self.recipe.encoder
        if name != "encoder" or not settings.joint:
            return steps / case.processes
        read = case.read(int(settings.epochs * trained_documents(name, case)))
        encoded = min(passes(settings) * self._encoding_rate * read, steps)
        return encoded / case.processes + steps - encoded

    @property
    def _encoding_rate(self) -> float:
        """Seconds that a token takes to encode."""
        return self._line("embeddings").rate

    def _frozen_seconds(self, tokens: float) -> float:
        """Return the seconds that ``tokens`` take in the layers that are not trained, from the rate of encoding."""
        return frozen_share(self.recipe.encoder) * self._encoding_rate * tokens

    def _repeated_frozen(self, case: Case) -> float:
        """Return the seconds of these layers in the steps of several processes; those of the timed steps are kept."""
        if case.processes == 1 or not case.repeats_frozen:
            return 0.0
        documents = int(self.recipe.encoder.epochs * trained_documents("encoder", case))
        return self._frozen_seconds(case.read(documents)) / case.processes

    def _remaining_seconds(self, name: str, pilot: Pilot, case: Case) -> float:
        """Return what a stage of a pilot cost beside searches, refreshes and the steps of a training."""
        seconds = pilot.stages[name]["cpu_seconds"]
        if name in pilot.trainings:
            epochs = getattr(self.recipe, name).epochs
            share = short_epochs(self.recipe, pilot.world)[name] / epochs if epochs else 0.0
            seconds -= pilot.trainings[name] * share + pilot.stages[name]["refresh_seconds"]
        elif name in searches(case):
            seconds -= sum(search.seconds(self.rates) for search in searches(case)[name])
        return max(seconds, 0.0)

    def refresh(self, case: Case) -> float:
        """Return the seconds of clustering documents before epochs of M1; searches are counted apart.

        The one refresh of a pilot clusters and searches, so its searches are taken off.
        """
        points = []
        for pilot, pilot_case in self._pilots:
            searched = sum(search.seconds(self.rates) for search in searches(pilot_case)["encoder"])
            searched /= max(pilot_case.refreshes, 1)
            clustered = max(pilot.stages["encoder"]["refresh_seconds"] - searched, 0.0)
            points.append((clustering(pilot.world.train, self._cluster_size), clustered))
        return case.refreshes * CostLine.through(points).at(clustering(case.world.train, self._cluster_size))

    @property
    def _cluster_size(self) -> int:
        return int(getattr(self.recipe.encoder.order, "size", 1))

    def _step_seconds(self, name: str, case: Case) -> float:
        """Return the seconds of all steps of a training, as many per document as in the training that was timed."""
        timed = self.rates.timed
        if name not in timed.trainings:
            return 0.0
        batch, train = getattr(getattr(self.recipe, name).order, "batch_size", 1), timed.world.train
        counted = math.ceil(train / batch) * min(batch, train)  # the estimate counts a smaller last batch as whole
        documents = trained_documents(name, case) / trained_documents(name, replace(case, world=timed.world)) * train
        return timed.trainings[name] / counted * documents

    def _memory(self, name: str, case: Case) -> float:
        bases = [
            pilot.stages[name]["peak_memory_mb"] * (1 << 20) - HELD[name](pilot_case)
            for pilot, pilot_case in (self._with_full_batches(case) if name == "encoder" else self._pilots)
        ]
        return max(min(bases), 0.0) + HELD[name](case)  # later pilots of the process hold what earlier ones left

    def _with_full_batches(self, case: Case) -> list[tuple[Pilot, Case]]:
        """Return the pilots with a batch of M1 as large as in the training, or the largest pilot.

        In a step M1 keeps what each layer computed from the texts of the batch: with fewer texts, less.
        """
        batch = min(getattr(self.recipe.encoder.order, "batch_size", 1), case.world.train)
        return [pair for pair in self._pilots if pair[0].world.train >= batch] or self._pilots[-1:]

    def _disk(self, name: str, case: Case) -> float:
        copied = [self._copied_bytes(name, pilot, pilot_case) for pilot, pilot_case in self._pilots]
        points = [
            (WRITTEN[name](pilot_case), max(pilot.stages[name]["disk_bytes"] - copy, 0.0))
            for (pilot, pilot_case), copy in zip(self._pilots, copied, strict=True)
        ]
        return CostLine.through(points[-2:]).at(WRITTEN[name](case)) + copied[-1]

    @staticmethod
    def _copied_bytes(name: str, pilot: Pilot, case: Case) -> float:
        """Return the bytes that a stage copies of another one's artefact: what that does not write per label.

        They do not grow with the data, but for the vocabulary of "bag" in small pilots.
        """
        if name not in COPIES:
            return 0.0
        source = COPIES[name]
        return max(pilot.stages[source]["disk_bytes"] - WRITTEN[source](case), 0.0)
