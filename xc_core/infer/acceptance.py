"""Measures a packed model on an acceptance set, in a process of its own: that it opens and answers is a result too.

Figures of documents, costs and the recall of the indexes are those of the files that would be served.

``python -m xc_core.infer.acceptance MODEL SET RESULT`` is what ``measured`` starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from xc_core.causes import storage_error, storage_reason
from xc_core.data.acceptance import AcceptanceSet
from xc_core.environment import DEVICE, python_path
from xc_core.errors import RefusedError, XCError
from xc_core.infer.bundle import open_predictor
from xc_core.infer.predictor import Predictor, latencies_ms
from xc_core.leftovers import temporary_folder
from xc_core.manifests import read_manifest
from xc_core.metrics.ranking import PerDocument, per_document, without
from xc_core.metrics.report import in_bins
from xc_core.metrics.stored import StoredFigures
from xc_core.scores import Query
from xc_core.shapes import PAD_ID, Shortlist, spans

_DEEP: Final = 100
"""Labels predicted per document: enough for metrics at 10 even if many pairs are filtered."""
AT_ONCE: Final = 256
"""Texts that a model is asked at once."""
_TIMED: Final = 40
"""Single texts that are timed."""
_SEARCHED: Final = 300
"""Texts, at most, with which the recall of the indexes is measured; spread evenly over the set."""
_FEWEST_SEARCHED: Final = 30
_PRODUCTS: Final = 10**11
"""Products of numbers, at most, in an exact search of these texts, unless they are the fewest: seconds to a minute."""
_SECONDS: Final = 3600.0
"""Time that a model has to answer all documents."""
_KEPT_ENVIRONMENT: Final = (
    "PATH",
    "HOME",
    "TMPDIR",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    DEVICE,
)
_MODEL: Final = "model"
_FIGURES, _COSTS, _RECALLS = "figures.npz", "costs.json", "recalls.json"


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a model costs to serve."""

    latency_p50_ms: float
    """Median time of a single text, from string to labels."""
    megabytes: float
    """Size of the packed model."""


@dataclass(frozen=True)
class Measured:
    """Figures of each document, costs, and the recall of the indexes."""

    figures: PerDocument
    costs: Costs
    recalls: dict[str, float] = field(default_factory=dict)
    """Share of what exact search finds that the index of a score finds, by score."""

    @property
    def recall(self) -> float:
        """The lowest recall of an index; 1 if no index measures it."""
        return min(self.recalls.values(), default=1.0)


def measured(model: Path, accepted: AcceptanceSet) -> Measured:
    """Return the figures of the packed model in the folder ``model``, from a new process with a bare environment.

    Raises RefusedError, with the last line that the process wrote, if the model does not open or answer there, and
    StorageError if the disk of temporary files is full.
    """
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    if places := python_path():
        environment["PYTHONPATH"] = os.pathsep.join(map(str, places))
    with temporary_folder() as scratch:
        command = [sys.executable, "-m", __name__, str(model), str(accepted.folder), str(scratch)]
        try:
            completed = subprocess.run(
                command, env=environment, cwd=scratch, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise _refused(f"no answer within {_SECONDS:.0f} s") from error
        if completed.returncode:
            message = (completed.stderr.strip().splitlines() or [f"exit code {completed.returncode}"])[-1][:300]
            if reason := storage_reason(RuntimeError(message), scratch):
                raise storage_error(reason, scratch)
            raise _refused(message)
        return _read(scratch)


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        f"a model that does not open or answer in a clean process ({reason})",
        expected="labels for every text",
        do="pack it again: xc run model --force, with its --dataset and --recipe",
    )


def _read(folder: Path) -> Measured:
    figures = StoredFigures(folder / _FIGURES).of(_MODEL)
    assert figures is not None
    costs, recalls = (json.loads((folder / name).read_text("utf-8")) for name in (_COSTS, _RECALLS))
    return Measured(figures, Costs(**costs), recalls)


def write_measured(model: Path, accepted: AcceptanceSet, folder: Path) -> None:
    """Measure the packed model in the folder ``model`` and write the result to ``folder``."""
    predictor = open_predictor(model)
    figures = answered(predictor, accepted)
    StoredFigures(folder / _FIGURES).write({_MODEL: figures}, figures.num)
    times = latencies_ms(predictor, accepted.texts[:_TIMED])
    median = float(np.median(times)) if times else 0.0
    costs = Costs(latency_p50_ms=median, megabytes=read_manifest(model).bytes / 1e6)
    (folder / _COSTS).write_text(json.dumps(asdict(costs)), "utf-8")
    (folder / _RECALLS).write_text(json.dumps(searched(predictor, accepted.texts)), "utf-8")


def searched(predictor: Predictor, texts: list[str]) -> dict[str, float]:
    """Return the recall of each index of a model, against exact search over the vectors in the model.

    Of ``texts`` at most 300 are searched, fewer if the labels are so many that exact search would take minutes.
    """
    width = predictor.embed(texts[:1]).shape[1]
    limit = _PRODUCTS // (predictor.ranker.num_labels * width)
    count = min(max(limit, _FEWEST_SEARCHED), _SEARCHED, len(texts))
    chosen = [texts[place] for place in np.linspace(0, len(texts) - 1, count).astype(int)]
    query = Query(predictor.embed(chosen), chosen)
    figures = {name: score.figures(query) for name, score in predictor.ranker.scores.items()}
    return {name: values["recall"] for name, values in figures.items() if "recall" in values}


def answered(predictor: Predictor, accepted: AcceptanceSet) -> PerDocument:
    """Return the figures of each document; labels that the set does not know are left out of the answers."""
    truth = accepted.truth
    ranked = without(shortlists(predictor, accepted.texts, accepted.ids()), accepted.filters)
    return per_document(ranked, truth, accepted.weights_L, dict(in_bins(accepted.frequency_L)))


def shortlists(predictor: Predictor, texts: list[str], ids: Mapping[str, int]) -> Shortlist:
    """Return the model's labels of each text under the numbers that ``ids`` has for their uids, without any others."""
    id_L = np.array([ids.get(uid, PAD_ID) for uid in predictor.uids] + [PAD_ID], np.int32)  # the last is for holes
    found = Shortlist.stack([predictor.shortlist(texts[rows], _DEEP) for rows in spans(len(texts), AT_ONCE)])
    known_labels = Shortlist(id_L[found.ids_NK], found.scores_NK)
    return known_labels.without(~known_labels.filled_NK)


if __name__ == "__main__":
    try:
        write_measured(Path(sys.argv[1]), AcceptanceSet.open(Path(sys.argv[2])), Path(sys.argv[3]))
    except XCError as error:
        sys.exit(error.found)  # one line
