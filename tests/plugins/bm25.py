"""The score ``bm25``: Okapi BM25 of a document's words against each label's text and its train documents."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, load_npz, save_npz

from xc_core.params import at_least
from xc_core.scores.base import SCORES, FittedScore, Score
from xc_core.shapes import PAD_ID


@SCORES.register("bm25")
@dataclass(frozen=True, kw_only=True)
class Bm25(Score):
    k1: float = 1.2
    b: float = 0.75

    def __post_init__(self):
        at_least(self, k1=0, b=0)

    def fit(self, data):
        profiles = [words(text) for text in data.label_texts()]
        for text, label in zip(np.array(data.texts(), object)[data.truth.pairs()[0]], data.truth.indices, strict=True):
            profiles[label] += words(text)
        ids = {word: number for number, word in enumerate(sorted(set().union(*profiles)))}
        lengths = np.array([profile.total() for profile in profiles])
        counts = counted(profiles, ids)
        idf = np.log1p((len(profiles) - counts.getnnz(0) + 0.5) / (counts.getnnz(0) + 0.5))
        label = np.repeat(np.arange(len(profiles)), np.diff(counts.indptr))
        norm = self.k1 * (1 - self.b + self.b * lengths / lengths.mean())
        counts.data = idf[counts.indices] * counts.data * (self.k1 + 1) / (counts.data + norm[label])
        return Fitted(ids, counts)

    def open(self, folder):
        return Fitted(json.loads((folder / "words.json").read_text("utf-8")), load_npz(folder / "weights.npz"))

    def cost(self, sample):
        return sample.seconds(self.fit)


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def counted(texts: list[Counter[str]], ids: dict[str, int]) -> csr_matrix:
    cells = [(row, ids[word], count) for row, own in enumerate(texts) for word, count in own.items() if word in ids]
    rows, columns, counts = np.array(cells, float).reshape(-1, 3).T
    return csr_matrix((counts, (rows.astype(int), columns.astype(int))), (len(texts), len(ids)))


@dataclass
class Fitted(FittedScore):
    ids: dict[str, int]
    weights_LT: Any

    @property
    def num_labels(self):
        return self.weights_LT.shape[0]

    def every(self, query):
        counts_NT = counted([words(text) for text in query.texts], self.ids)
        return (counts_NT @ self.weights_LT.T).toarray().astype(np.float32)

    def candidates(self, query, k):
        values_NL = self.every(query)
        best = np.argsort(-values_NL, axis=1, kind="stable")[:, :k]
        return np.where(np.take_along_axis(values_NL, best, 1) > 0, best, PAD_ID).astype(np.int32)

    def values(self, query, ids_NK):
        return np.take_along_axis(self.every(query), np.maximum(ids_NK, 0), 1)

    def save(self, folder):
        (folder / "words.json").write_text(json.dumps(self.ids), "utf-8")
        save_npz(folder / "weights.npz", self.weights_LT)
