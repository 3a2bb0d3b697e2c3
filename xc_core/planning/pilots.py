"""Pilots: the recipe itself, run on a few documents of a data set or on made-up ones, to learn what each stage costs.

Three pilots run in one process. The smallest pays for imports, the other two give a fixed cost and a rate.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from xc_core import artifacts
from xc_core.ann import INDEXES, Exact, Index
from xc_core.chain.fingerprints import input_folder
from xc_core.chain.registry import TRAIN_STAGES
from xc_core.chain.runner import run_stage
from xc_core.chain.workspace import Workspace
from xc_core.data.checks import Allowed
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.data.tokenizer import load
from xc_core.data.tokens import Tokenised
from xc_core.leftovers import scratch, temporary_folder
from xc_core.params import MOST_WHOLE, deep_merged
from xc_core.planning.budget import shortened, training_seconds
from xc_core.planning.data_size import DataSize
from xc_core.progress import quiet, report
from xc_core.recipes import Recipe
from xc_core.seeds import generator
from xc_core.shapes import I64
from xc_core.visible import counted

SIZES: Final = (200, 1_000, 4_000)
"""Documents of the pilots, and labels at least, as far as there are as many."""
STEPS: Final = 2
"""Batches of M1 that a pilot trains, after one clustering and one search."""
_RUNS: Final = {"corpus": 3, "tokens": 3, "fusion": 2, "evaluation": 2}
"""Runs of stages whose cost on few documents is mostly fixed. The quickest counts: small differences between pilots
decide the rate, and other processes increase them. Of three pilots the smallest runs once: it pays for imports."""
_VOCABULARY_SIZE: Final = 20_000
_QUERIES, _FEW, _MANY, _GRAPH = 256, 16_384, 131_072, 4_096
NAME: Final = "pilot"
"""Name of the data set and of the recipe of a pilot."""


@dataclass(frozen=True)
class Text:
    """A document or a label of a pilot."""

    title: str
    content: str = ""
    labels: tuple[int, ...] = ()


@dataclass(frozen=True)
class PilotSource:
    """Where the documents of pilots come from: documents are numbered, and drawn by number."""

    world: DataSize
    document: Callable[[I64], list[Text]]
    label: Callable[[I64], list[Text]]
    published: Callable[[I64], I64]
    """From positions among the train and validation documents to numbers of documents."""
    test: Callable[[I64], I64]
    """The same for test documents."""

    @classmethod
    def of_corpus(cls, corpus: Corpus, world: DataSize) -> PilotSource:
        """Draw from a corpus."""

        def document(rows: I64) -> list[Text]:
            table, truth = corpus.table("documents", rows), corpus.labels.rows(rows)
            return [
                Text(title or "", content or "", tuple(truth.row(i).tolist()))
                for i, (title, content) in enumerate(zip(table["title"], table["content"], strict=True))
            ]

        def label(rows: I64) -> list[Text]:
            table = corpus.table("labels", rows)
            return [Text(a or "", b or "") for a, b in zip(table["title"], table["content"], strict=True)]

        published = np.concatenate([corpus.rows(split) for split in (TRAIN, VALIDATION)])
        tests = corpus.rows(TEST)
        return cls(world, document, label, lambda positions: published[positions], lambda positions: tests[positions])

    @classmethod
    def made_up(cls, world: DataSize, tokenizer: str) -> PilotSource:
        """Draw words by Zipf's law; a document has the words of its labels too, so that a model has what to find."""
        words = [f"{a}{b}{c}" for a in _SYLLABLES for b in _SYLLABLES for c in _SYLLABLES][:_VOCABULARY_SIZE]
        share = 1 / np.arange(2, len(words) + 2)
        share /= share.sum()
        per_word = _tokens_per_word(tokenizer, generator(0, "pilot-words").choice(words, 2_000, p=share).tolist())
        counts = [max(round(tokens / per_word), 1) for tokens in (world.document_tokens, world.label_tokens)]

        def drawn(kind: str, row: int, count: int) -> list[str]:
            random = generator(0, f"pilot-{kind}-{row}")
            return [words[i] for i in random.choice(len(words), count, p=share)]

        def text(row: int) -> Text:
            random = generator(0, f"pilot-pairs-{row}")
            labels = sorted(set(random.integers(0, world.labels, max(round(world.pairs), 1)).tolist()))
            label_words = [drawn("label", label, counts[1])[0] for label in labels][: counts[0] // 2]
            words = [*label_words, *drawn("document", row, counts[0] - len(label_words))]
            return Text(" ".join(words), "", tuple(labels))

        return cls(
            world,
            document=lambda rows: [text(row) for row in rows.tolist()],
            label=lambda rows: [Text(" ".join(drawn("label", row, counts[1]))) for row in rows.tolist()],
            published=lambda positions: positions,
            test=lambda positions: world.published + positions,
        )

    def sizes(self, size: int) -> tuple[int, int]:
        """Return how many test and other documents a pilot of ``size`` documents has, fewer if there are not as many.

        A third are test documents: one of them costs little compared with the fixed cost of an evaluation.
        """
        num_test = min(self.world.test, size // 3)
        return num_test, min(self.world.published, size - num_test)

    def write(self, folder: Path, size: int) -> None:
        """Write ``size`` documents and their labels in the XC JSON layout, and more labels, up to ``size`` in all."""
        world, random = self.world, generator(0, f"pilot-{size}")
        num_test, num_published = self.sizes(size)
        rows = {
            "tst": np.sort(self.test(_distinct(random, world.test, num_test))),
            "trn": np.sort(self.published(_distinct(random, world.published, num_published))),
        }
        texts = {name: self.document(ids) for name, ids in rows.items()}
        used = {label for documents in texts.values() for text in documents for label in text.labels}
        drawn = _distinct(random, world.labels, size).tolist()
        used.update([label for label in drawn if label not in used][: max(size - len(used), 0)])
        labels = np.array(sorted(used), np.int64)
        position_of = {int(label): i for i, label in enumerate(labels)}
        folder.mkdir(parents=True)
        rows["lbl"], texts["lbl"] = labels, self.label(labels)
        for name, ids in rows.items():
            with gzip.open(folder / f"{name}.json.gz", "wt", encoding="utf-8") as file:
                pairs = zip(ids.tolist(), texts[name], strict=True)
                file.writelines(_line(name, row, text, position_of) + "\n" for row, text in pairs)


def _line(part: str, row: int, text: Text, position_of: dict[int, int]) -> str:
    content: dict[str, Any] = {"uid": f"{part[0]}{row}", "title": text.title, "content": text.content}
    if part != "lbl":
        targets = [position_of[label] for label in text.labels]
        content |= {"target_ind": targets, "target_rel": [1.0] * len(targets)}
    return json.dumps(content)


_SYLLABLES: Final = [a + b for a in "bdfgklmnprst" for b in "aeiou"][:30]


def _distinct(random: np.random.Generator, total: int, size: int) -> I64:
    """Return ``size`` different numbers below ``total``; memory does not grow with ``total``."""
    if total <= 4 * size:
        return random.permutation(total)[:size]
    return random.permutation(np.unique(random.integers(0, total, 2 * size)))[:size]


def _tokens_per_word(name: str, words: list[str]) -> float:
    tokenizer = load(name, [words])
    _, counts = tokenizer.encode([" ".join(words)])
    return float(np.sum(counts)) / len(words)


@dataclass(frozen=True)
class Timed:
    """Seconds of all steps of M1 and M4 with the epochs of the recipe, by the budget's estimate, on some data."""

    world: DataSize
    trainings: dict[str, float]


@dataclass(frozen=True)
class Pilot(Timed):
    """What a pilot cost."""

    stages: dict[str, dict[str, float]]
    """By stage: cpu_seconds, peak_memory_mb, disk_bytes, and refresh_seconds of a training."""


@dataclass(frozen=True)
class Rates:
    """What a recipe costs on this machine."""

    pilots: tuple[Pilot, ...]
    timed: Timed
    """Steps on the data set itself if there is one, otherwise on the largest pilot."""
    width: int
    """D, the width of the vectors."""
    exact: float
    """Seconds of exact search per query, label and dimension."""
    query: float
    """Seconds of exact search per query, whatever it is compared with."""
    built: float
    """Seconds of a graph per vector, times log2 of their number."""
    walked: float
    """Seconds of a graph search per query, times log2 of the number of vectors."""

    def as_json(self) -> str:
        """Return the rates as text."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Rates:
        """Return what ``as_json`` wrote."""
        content = json.loads(text)
        pilots = tuple(Pilot(DataSize(**p["world"]), p["trainings"], p["stages"]) for p in content.pop("pilots"))
        timed = content.pop("timed")
        return cls(pilots=pilots, timed=Timed(DataSize(**timed["world"]), timed["trainings"]), **content)


def measure_rates(workspace: Workspace, base: str, changes: dict[str, Any], source: PilotSource) -> Rates:
    """Run the pilots of recipe ``base`` with ``changes``, in the state folder of ``workspace``, and time searches.

    If the state may not be written, they run among the temporary files. The folders of the pilots are deleted.
    """
    pilots: list[Pilot] = []
    width = 0
    sizes = _pilot_sizes(source.world.documents)
    for number, size in enumerate(sizes):
        documents = counted(sum(source.sizes(size)), "document")
        report(f"plan: running {base}{' with changes' if changes else ''} on {documents}")
        runs = {} if number == 0 and len(sizes) > 2 else _RUNS
        with ExitStack() as stack, quiet():
            try:
                folder = stack.enter_context(scratch(workspace.state / NAME))
            except OSError:
                folder = stack.enter_context(temporary_folder())
            pilot, width = _run_pilot(Workspace(folder), base, changes, source, size, runs)
            pilots.append(pilot)
    report("plan: timing searches")
    with quiet():
        return Rates(tuple(pilots), pilots[-1], width, *_search_rates(width))


def _pilot_sizes(documents: int) -> list[int]:
    """Return the sizes of the pilots for data of so many documents.

    If the smallest pilot does not have all of them, there is a second one, with all if there are few. One pilot alone
    does not tell fixed costs from costs per document, and of 200 documents it has half a batch of M1.
    """
    count = sum(size < documents for size in SIZES)
    return list(SIZES[: count if count > 1 else 1 + count])


def _run_pilot(
    workspace: Workspace, base: str, changes: dict[str, Any], source: PilotSource, size: int, runs: dict[str, int]
) -> tuple[Pilot, int]:
    """Run all stages on ``size`` documents, as often as ``runs`` says; return their costs and the vectors' width."""
    artifacts.write_file(workspace.root / "params.yaml", "datasets: {}\nexperiments: {}\n")
    source.write(workspace.raw(NAME), size)
    allow = tuple(Allowed.kinds())
    config = IngestConfig(allow=allow, filters="none", max_line_bytes=MOST_WHOLE)  # tables have no lines
    workspace.params.declare_dataset(NAME, config)
    experiment = workspace.params.declare_experiment(NAME, NAME, base, changes)
    stages = {stage: _stage_cost(workspace, stage, runs.get(stage, 1)) for stage in ("corpus", "tokens")}
    corpus = workspace.open(Corpus, NAME)
    tokens = Tokenised.open(input_folder(workspace, "tokens", experiment))
    world = DataSize.of(corpus, tokens, experiment.recipe.encoder)
    trainings = training_seconds(workspace, experiment)
    shorter = deep_merged(changes, _short_changes(experiment.recipe, world))
    workspace.params.declare_experiment(NAME, NAME, base, shorter)
    others = [stage for stage in TRAIN_STAGES if stage not in stages]
    stages |= {stage: _stage_cost(workspace, stage, runs.get(stage, 1)) for stage in others}
    width = workspace.open(Embeddings, NAME, NAME).width
    return Pilot(world, trainings, stages), width


def short_epochs(recipe: Recipe, world: DataSize) -> dict[str, float]:
    """Return the epochs of M1 and M4 in a pilot: a few batches of M1, one pass of M4."""
    batch = getattr(recipe.encoder.order, "batch_size", 1)
    return {
        "encoder": min(recipe.encoder.epochs, STEPS * batch / world.train, 1.0),
        "classifier": min(recipe.classifier.epochs, 1.0),
    }


def _short_changes(recipe: Recipe, world: DataSize) -> dict[str, Any]:
    epochs = short_epochs(recipe, world)
    changes: dict[str, Any] = {stage: {"epochs": count} for stage, count in epochs.items()}
    if recipe.encoder.epochs:
        changes["encoder"] |= shortened(recipe.encoder, epochs["encoder"])
    return changes


def _stage_cost(workspace: Workspace, name: str, runs: int) -> dict[str, float]:
    """Return what a stage of a pilot cost: the running time of the quickest of ``runs``, all else of the first."""
    first = run_stage(workspace, name, NAME, NAME)
    repeats = [run_stage(workspace, name, NAME, NAME, force=True) for _ in range(runs - 1)]
    wall, cpu = max(first.costs["seconds"], 1e-9), first.costs["cpu_seconds"]
    return {
        "cpu_seconds": min(result.costs["cpu_seconds"] for result in (first, *repeats)),
        "peak_memory_mb": first.costs["peak_memory_mb"],
        "disk_bytes": float(sum(file.stat().st_size for file in first.folder.rglob("*") if file.is_file())),
        "refresh_seconds": first.costs.get("mining_seconds", 0.0) * min(cpu / wall, 1.0),
    }


def _search_rates(width: int) -> tuple[float, float, float, float]:
    """Return the rates of exact search (``exact``, ``query``), of building a graph and of searching in it.

    Keeping the largest products costs less per label the more labels there are, so exact search is timed at two sizes
    and a line is laid through them.
    """
    random = generator(0, "pilot-search")
    vectors, queries = (random.standard_normal((n, width), np.float32) for n in (_MANY, _QUERIES))
    points = []
    for size in (_FEW, _MANY):
        index = Exact().build(vectors[:size])
        index.search(queries[:8], 100)
        points.append((float(size), _running_time(partial(index.search, queries, 100)) / _QUERIES))
    exact, query = slope_and_rest(points)
    graph_vectors = vectors[:_GRAPH]
    graphs: list[Index] = []
    built = _running_time(lambda: graphs.append(INDEXES["hnsw"]().build(graph_vectors))) / (_GRAPH * math.log2(_GRAPH))
    walked = _running_time(lambda: graphs[0].search(queries, 100)) / (_QUERIES * math.log2(_GRAPH))
    return exact / width, query, built, walked


def slope_and_rest(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of the line through two points and its value at 0, neither below 0."""
    (x1, y1), (x2, y2) = points
    slope = max((y2 - y1) / (x2 - x1), 0.0) if x2 > x1 else 0.0
    return slope, max(y2 - slope * x2, 0.0)


def _running_time(work: Callable[[], Any]) -> float:
    """Return the median running time of this process over three calls."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return float(np.median(times))
