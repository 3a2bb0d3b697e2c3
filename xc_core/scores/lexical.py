"""The score ``lexical``: the probability of a label given the words and word n-grams of a text, by label trees.

Two fits on the same texts with the same seed give the same trees, with any number of threads. A saved model gives the
same scores wherever it is opened.

Files: those of ``terms`` and of ``forest``; ``lexical.json`` (number of labels); with labels that came after the
training ``later/labels.safetensors``. Older models have ``tree0/``, ``tree1/``, ..., each a tree as omikuji wrote it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError
from xc_core.memory import give_back
from xc_core.params import MAX_DEPTH, at_least, later, within
from xc_core.scores.base import SCORES, FittedScore, Footprint, NewLabels, Query, Sample, Score, ScoreData, Size
from xc_core.scores.beam_search import shortlist
from xc_core.scores.forest import FILE, Forest
from xc_core.scores.label_words import Matches
from xc_core.scores.omikuji_tree import read_tree
from xc_core.scores.terms import Terms, TermSettings, nothing_to_learn, require
from xc_core.scores.tree_size import PARTS, WORDS, TreeSize
from xc_core.scores.trees.growing import Growth, grow
from xc_core.shapes import F32, I32, PAD_ID, Shortlist

_CONTENT: Final = "lexical.json"
_LATER: Final = "later"
_TREE_FILE: Final = "tree0.cbor"
"""The file of a tree in a folder that omikuji wrote."""
_GROWTH: Final = 1.2
"""Training a tree on N documents takes time proportional to N^1.2, because the tree also gets deeper."""


@SCORES.register("lexical")
@dataclass(frozen=True, kw_only=True)
class Lexical(Score):
    """TF-IDF of words and Bonsai-like label trees; terms, branches and levels are those that Annif advises."""

    code_version = "3"  # trees were omikuji's, which drew other numbers in every fit
    probability = True
    learns = True

    terms: TermSettings = field(default_factory=TermSettings)
    trees: int = 3
    """Label trees, whose scores are averaged."""
    clusters: int = 100
    """Branches per node, of any size."""
    depth: int = 3
    """Levels of branches."""
    passes: int = later(5, was=20)
    """Passes of a linear model over the documents of its node, at most."""
    tolerance: float = later(0.01, was=0.0001)
    """Gain in mean cosine below which the clustering of a node's labels stops."""
    threshold: float = later(0.1, was=0.1)
    """Weights of a linear model that are no larger are dropped."""
    usual_terms: int = later(0, was=0)
    """If documents have more terms on average, ``threshold`` is lower in proportion, because the weights of long texts
    are smaller; 0: it is the same for all."""
    beam: int = 10
    """Nodes per level that a prediction follows."""
    labels: int = 100
    """Labels of a document that have a score, at most."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        at_least(self, clusters=2, passes=1, usual_terms=0, beam=1, labels=1)
        within(self, trees=(1, 1000), depth=(1, MAX_DEPTH), tolerance=(1e-6, 1), threshold=(0, 100))

    def check(self) -> None:
        """Raise MissingError if numba or scikit-learn is not installed."""
        require("numba", "numba")
        require("scikit-learn", "sklearn")

    def fit(self, data: ScoreData) -> FittedScore:
        """Fit on the texts of documents and labels; a label's text is one more document of that label.

        Documents without a kept term or without a label are left out. Raises DataError if none is left, MissingError if
        a package is not installed, ValueError if the number of texts is not that of documents and labels.
        """
        self.check()
        terms, terms_NT = Terms.of(data, self.terms)
        truth = data.truth.above(LabelMatrix.identity(data.truth.num_labels))
        kept = np.flatnonzero((np.diff(terms_NT.indptr) > 0) & (truth.counts_N > 0))
        if not len(kept):
            raise nothing_to_learn(self.terms)
        give_back()  # counting terms took several times the memory of what is left
        growth = self.growth(self._threshold_of(terms_NT[: len(data.truth)]))
        filters = data.filters
        if filters is not None:
            filters = filters.above(LabelMatrix.none(truth.num_labels, truth.num_labels)).rows(kept)
        trees = grow(terms_NT[kept], truth.rows(kept), filters, growth, self.trees)
        return LabelTrees(self, truth.num_labels, terms, Forest.of(trees, len(terms)))

    def growth(self, threshold: float) -> Growth:
        """Return how trees grow, with this threshold."""
        return Growth(
            clusters=self.clusters,
            depth=self.depth,
            passes=self.passes,
            tolerance=self.tolerance,
            threshold=threshold,
            seed=self.seed,
        )

    def _threshold_of(self, terms_NT: Any) -> float:
        """Return the threshold for documents with these terms."""
        usual, found = self.usual_terms * int(terms_NT.shape[0]), int(terms_NT.nnz)
        return self.threshold * usual / found if 0 < usual < found else self.threshold

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Score new labels by the cosine of the texts' terms (a guess): the trees know only those of their training.

        In a fit the text of a label is one more document, so trees find every label by its own text. With 0 in place of
        the cosine, the fusion of ``house`` on WordNetMini ranked new labels below 180 others for their own texts.
        """
        assert isinstance(fitted, LabelTrees)
        present, texts = fitted.later, new.texts()
        later = Matches(fitted.terms, fitted.terms.transform(texts)) if present is None else present.with_texts(texts)
        return replace(fitted, num_labels=fitted.num_labels + len(new), later=later)

    def open(self, folder: Path) -> FittedScore:
        """Open the trees and the terms; raise CorruptError if they do not fit together. numba is not needed."""
        size = int(json.loads((folder / _CONTENT).read_text("utf-8"))["labels"])
        terms = Terms.open(folder)
        later = Matches.open(folder / _LATER, terms) if (folder / _LATER).is_dir() else None
        is_older = not (folder / FILE).exists() and (folder / "tree0").exists()
        forest = _older_forest(folder, self.trees, len(terms)) if is_older else Forest.open(folder)
        learnt = size - (0 if later is None else later.num_labels)
        expected = {"trees": self.trees, "terms": len(terms), "labels": learnt}
        found = {"trees": forest.num_trees, "terms": forest.num_terms, "labels": max(learnt, forest.num_labels)}
        if found != expected:
            raise CorruptError(f"{found} in {folder}", expected=f"{expected}", do="run the stage scores again")
        return LabelTrees(self, size, terms, forest, later)

    def cost(self, sample: Sample) -> float:
        """Return the estimated seconds of all fits."""
        return sample.seconds(self.fit, growth=_GROWTH)

    def footprint(self, size: Size) -> Footprint:
        """Return the bytes of the trees in memory and in their files, of a fit, and of a search."""
        return self.tree_size(size).footprint()

    def tree_size(self, size: Size) -> TreeSize:
        """Return what the trees take on texts of this size."""
        return TreeSize(
            size=size,
            kind=PARTS if self.terms.characters else WORDS,
            most_terms=self.terms.terms,
            trees=self.trees,
            clusters=self.clusters,
            depth=self.depth,
            threshold=self.threshold,
            usual_terms=self.usual_terms,
            beam=self.beam,
        )


@SCORES.register("characters")
@dataclass(frozen=True, kw_only=True)
class Characters(Lexical):
    """The same on parts of words: of inflected and compound words, misspelt ones and names only parts are known."""

    terms: TermSettings = field(default_factory=lambda: TermSettings(characters=4))


@dataclass(frozen=True, eq=False)
class LabelTrees:
    """Fitted label trees; several threads may use them at once."""

    settings: Lexical
    num_labels: int
    terms: Terms
    forest: Forest
    later: Matches | None = None
    """The texts of the last labels, which came after the training; None if there are none."""

    def candidates(self, query: Query, k: int) -> I32 | None:
        """Return the labels with a score, whatever ``k`` is: ``labels`` of the settings, and as many later ones."""
        ids_NK = self._shortlist_of(query).ids_NK
        if self.later is None:
            return ids_NK
        later_NK = self.later.best(query, self.settings.labels)
        first = self.num_labels - self.later.num_labels
        return np.concatenate([ids_NK, np.where(later_NK == PAD_ID, PAD_ID, later_NK + first)], axis=1, dtype=np.int32)

    def alone(self, query: Query, k: int) -> I32 | None:
        """Return the same candidates."""
        return self.candidates(query, k)

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return the score of each candidate; 0 for a label that is not among the document's best."""
        tree_NK = scores_of(self._shortlist_of(query), ids_NK)
        if self.later is None:
            return tree_NK
        first = self.num_labels - self.later.num_labels
        is_later_NK = ids_NK >= first
        later_ids_NK = np.where(is_later_NK, ids_NK - first, PAD_ID).astype(np.int32)
        return np.where(is_later_NK, self.later.values(query, later_ids_NK), tree_NK)

    def figures(self, query: Query) -> dict[str, float]:
        """Return no figures."""
        return {}

    def _shortlist_of(self, query: Query) -> Shortlist:
        return query.cache.once(("lexical", self), lambda: self.shortlist(self.terms.of_query(query)))

    def shortlist(self, terms_NT: Any) -> Shortlist:
        """Return the best labels of each row of terms, with scores up to 1; none for a row of zeros."""
        return shortlist(self.forest, terms_NT, beam=self.settings.beam, k=self.settings.labels)

    def save(self, folder: Path) -> None:
        """Write into an existing folder; the same model always gives the same bytes, also after it was opened."""
        (folder / _CONTENT).write_text(json.dumps({"labels": self.num_labels}) + "\n", "utf-8")
        self.terms.save(folder)
        if self.later is not None:
            (folder / _LATER).mkdir()
            self.later.save_texts(folder / _LATER)
        self.forest.save(folder)


def scores_of(short: Shortlist, ids_NK: I32) -> F32:
    """Return the score of each candidate in its document's shortlist (N x K); 0 for one that is not in it."""
    rows = np.arange(len(ids_NK))[:, None]
    width = np.int64(1 + max(short.ids_NK.max(initial=0), ids_NK.max(initial=0)))
    keys = (rows * width + short.ids_NK)[short.filled_NK]
    if not len(keys):
        return np.zeros(ids_NK.shape, np.float32)
    order = np.argsort(keys)
    queries = rows * width + ids_NK
    positions = np.minimum(np.searchsorted(keys, queries, sorter=order), len(keys) - 1)
    hit = (keys[order][positions] == queries) & (ids_NK != PAD_ID)
    return np.where(hit, short.scores_NK[short.filled_NK][order][positions], 0).astype(np.float32)


def _older_forest(folder: Path, trees: int, num_terms: int) -> Forest:
    """Open the trees of an older model; raise CorruptError if one is missing or is of other terms."""
    folders = [folder / f"tree{number}" for number in range(trees)]
    for place in folders:
        settings = place / "settings.json"
        found = json.loads(settings.read_text("utf-8")) if settings.exists() else None
        expected = {"n_features": num_terms, "classifier_loss_type": "Hinge"}
        if found != expected:
            raise CorruptError(f"{found} in {settings}", expected=f"{expected}", do="run the stage scores again")
    try:
        return Forest.of((read_tree(place / _TREE_FILE) for place in folders), num_terms)
    except ValueError as error:
        raise CorruptError(
            f"trees in {folder}: {error}", expected="label trees", do="run the stage scores again"
        ) from error
