"""Stage scores: fits every score of the recipe for each fold of the classifier.

The held-out folds give the fusion documents that no score has seen; the final fold is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from xc_core.ann import IndexPart
from xc_core.chain.context import Context
from xc_core.classifiers import LabelTables
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.folds import Fold
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.errors import ConfigError
from xc_core.progress import Steps, working_on
from xc_core.sampling import Noise
from xc_core.scores import NewLabels, Query, Score, ScoreData, Scores, ScoresWriter
from xc_core.scores.base import HasIndex

_QUERY_DOCUMENTS: Final = 1000
"""Validation documents on which figures such as the recall of an index are measured."""
_QUERY_DOCUMENTS_EXTENDED: Final = 100
"""The same, after labels were added: an index differs little from the one that was measured on more."""


@dataclass(frozen=True)
class ScoreInputs:
    """The inputs that scores are fitted on."""

    corpus: Corpus
    embeddings: Embeddings
    tables: LabelTables

    def of(self, fold: Fold) -> ScoreData:
        """Return the data that the scores of a fold are fitted on; each part is read when a score asks for it."""
        rows_N, corpus, embeddings = fold.documents(self.corpus), self.corpus, self.embeddings
        return ScoreData(
            truth=corpus.labels.rows(rows_N),
            filters=corpus.filters.rows(rows_N),
            counts=lambda: fold.counts(corpus),
            texts=lambda: corpus.texts_of("documents", rows_N),
            text_stream=lambda: corpus.each_text("documents", rows_N),
            label_texts=corpus.label_texts,
            vectors=lambda: np.ascontiguousarray(embeddings.documents_ND[rows_N]),
            label_vectors=lambda: embeddings.labels_LD,
            rows=lambda: self.tables.rows(fold.name),
            noise=lambda: self.noise(fold.name),
        )

    def noise(self, fold: str) -> Noise:
        """Return the noise distribution of a fold's negatives; raise ConfigError if there is none."""
        noise = self.tables.noise(fold)
        if noise is None:
            raise ConfigError(
                "a score of the noise distribution, with a classifier whose negatives were drawn from none",
                expected="classifier.negatives frequency or tree, and epochs above 0",
                do="leave the score out: --set scores.noise=null",
            )
        return noise


def run(context: Context[Mapping[str, Score]]) -> None:
    """Fit, measure and write each score."""
    inputs = ScoreInputs(context.read(Corpus), context.read(Embeddings), context.read(LabelTables))
    writer = ScoresWriter(context.build, context.settings)
    query = _figures_query(inputs, _QUERY_DOCUMENTS)
    folds, parts = inputs.tables.folds, context.settings.items()
    total = sum(score.per_fold or fold.final for fold in folds for _, score in parts)
    with Steps("fitting scores", total) as steps:
        for fold in folds:
            data = inputs.of(fold)
            for name, score in parts:
                if score.per_fold or fold.final:
                    steps.begin(f"{name} of the fold {fold.name}")
                    with working_on(f"score {name}"):
                        fitted = (score if fold.final else _for_batches(score)).fit(data)
                    writer.add(fold, name, fitted)
                    if fold.final and (figures := fitted.figures(query)):
                        writer.figures[name] = figures
                    del fitted  # the next fit needs the memory
    writer.finish(folds)
    recalls = ", ".join(
        f"{name} {figures[figure]:.3f}{suffix}"
        for name, figures in writer.figures.items()
        for figure, suffix in (("recall", ""), ("document_recall", " (of documents)"))
        if figure in figures
    )
    fitted_times = f" on {len(folds)} folds" if len(folds) > 1 else ""
    context.report(f"scores: {', '.join(context.settings)} fitted{fitted_times}; search recall {recalls or '-'}")


def extend(context: Context[Mapping[str, Score]]) -> None:
    """Add labels that are new at the end to each score; no score is fitted again."""
    inputs = ScoreInputs(context.read(Corpus), context.read(Embeddings), context.read(LabelTables))
    previous = Scores.open(context.previous)
    corpus, writer = inputs.corpus, ScoresWriter(context.build, previous.parts)
    query = _figures_query(inputs, _QUERY_DOCUMENTS_EXTENDED)
    for fold in previous.folds:
        fitted = previous.fitted(fold.name)
        num_known = next(iter(fitted.values())).num_labels
        texts = partial(corpus.label_texts, num_known)
        rows, foreseen = inputs.tables.rows(fold.name), inputs.tables.foreseen
        new_labels = NewLabels(num_known, texts, inputs.embeddings.labels_LD, rows, foreseen)
        for name, score in previous.parts.items():
            if score.per_fold or fold.final:
                with working_on(f"score {name}"):
                    extended = score.extended(fitted[name], new_labels)
                writer.add(fold, name, extended)
                if fold.final and (figures := extended.figures(query)):
                    writer.figures[name] = figures
    writer.finish(previous.folds)


def _for_batches(score: Score) -> Score:
    """Return the score for a held-out fold, which is only asked many queries at once, so it needs no graph."""
    if isinstance(score, HasIndex) and isinstance(score.index, IndexPart):
        return replace(score, index=score.index.for_batches())  # type: ignore[type-var]
    return score


def _figures_query(inputs: ScoreInputs, limit: int) -> Query:
    """Return validation documents, or train documents if there are none; never test documents."""
    rows = inputs.corpus.rows(VALIDATION)
    rows = (rows if len(rows) else inputs.corpus.rows(TRAIN))[:limit]
    doc_ND = np.ascontiguousarray(inputs.embeddings.documents_ND[rows])
    return Query(doc_ND, lambda: inputs.corpus.texts_of("documents", rows))
