"""Stage evaluation: measures the model on test documents, after every decision. Nothing is fitted or chosen here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from xc_core.chain.context import Context
from xc_core.classifiers import LabelTables
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.history import TrainedOn
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.devices import Device
from xc_core.encoders import TrainedEncoder
from xc_core.fusion import FittedFusion
from xc_core.infer.examples import examples, right_and_wrong, titles_of
from xc_core.infer.predictor import Predictor, latencies_ms
from xc_core.infer.ranker import Ranker
from xc_core.metrics import plots
from xc_core.metrics.calibration import calibration, in_words
from xc_core.metrics.confusions import confusions
from xc_core.metrics.evaluation import ALL, FUSION, OWN, LearntFrom, write_evaluation
from xc_core.metrics.names import RECALL_KS
from xc_core.metrics.ranking import PerDocument, hits, of_each, without
from xc_core.metrics.report import in_bins, report
from xc_core.recipes.settings import EvaluationSettings
from xc_core.scores import Query, Scores
from xc_core.seeds import generator
from xc_core.shapes import F32, F64, I64, Bool, Shortlist
from xc_core.visible import counted


@dataclass(frozen=True)
class _Ranked:
    """The test documents, ranked by the fusion and by each of its parts."""

    rows_N: I64
    truth: LabelMatrix
    short: Shortlist
    """What the fusion ranks first, without filtered pairs."""
    figures: dict[str, PerDocument]
    searching: frozenset[str]
    """Parts that ranked candidates of their own, as a model with this part alone would."""


def run(context: Context[EvaluationSettings]) -> None:
    """Rank labels of the test documents without filtered pairs, measure, plot."""
    settings, corpus, scores = context.settings, context.read(Corpus), context.read(Scores)
    fusion, vectors_ND = context.read(FittedFusion), context.read(Embeddings).documents_ND
    ranker = Ranker(scores.fitted(), fusion)
    weights_L, frequency_L = corpus.weights(), corpus.published_train().frequency_L()
    ranked = _rank(corpus, ranker, fusion, vectors_ND, weights_L, frequency_L)
    trained, tables = context.read(TrainedEncoder), context.read(LabelTables)
    learning = tuple(name for name, score in scores.parts.items() if score.learns)
    most = int(corpus.labels.counts_N.max())
    content = report(ranked.short, ranked.truth, weights_L, frequency_L, seed=settings.seed, most=most)
    content |= _describe_parts(ranked, list(content["metrics"]))
    content |= {"rule": fusion.rule.kind, "index_recall": scores.recalls}
    content["learnt_from"] = asdict(_learnt_from(corpus, trained, tables, fusion, learning))
    content["confusions"] = _confusions(ranked, corpus)
    content["calibration"] = _calibration(ranked, fusion)
    picked = generator(settings.seed, "examples").permutation(len(ranked.rows_N))
    shown = right_and_wrong(ranked.short, ranked.truth, picked, settings.examples)
    of_shown = ranked.rows_N[shown], ranked.short.rows(shown), ranked.truth.rows(shown)
    write_evaluation(context.build, content, ranked.figures, examples(corpus, ranker, vectors_ND, *of_shown))
    histories = {"encoder": trained.history, "classifier": tables.history}
    plots.training_curves(context.build.path, histories, context.run.title)
    plots.deciles(context.build.path, content["deciles"], context.run.title)
    served_encoder = trained.encoder.on(Device.chosen()).without_gradients()  # as a packed model encodes
    _latency(context, Predictor(trained.tokenizer, served_encoder, ranker, [], []), corpus, ranked.rows_N[picked])
    metrics = content["metrics"]
    context.report(
        f"evaluation: P@1 {metrics['P_at_1']:.2f}, P@5 {metrics['P_at_5']:.2f}, PSP@5 {metrics['PSP_at_5']:.2f} on test"
    )
    if content["calibration"]:
        context.report(f"evaluation: {in_words(content['calibration'])}")
    notes = [_no_label_note(ranked.short), _label_shift_note(corpus) if fusion.rule.learns else ""]
    for note in filter(None, notes):
        context.report(f"evaluation: {note}")


def _rank(
    corpus: Corpus, ranker: Ranker, fusion: FittedFusion, vectors_ND: F32, weights_L: F64, frequency_L: I64
) -> _Ranked:
    """Rank labels of the test documents by the fusion and its parts, and measure each ranking."""
    rows_N = corpus.rows(TEST)
    truth, filters = corpus.labels.rows(rows_N), corpus.filters.rows(rows_N)
    rules = {FUSION: fusion, **fusion.parts()}
    first = rows_N[:1]
    searching = rules.keys() & ranker.searching(Query(vectors_ND[first], corpus.texts_of("documents", first)))
    blocks = ranker.blocks(
        vectors_ND, rows_N, lambda: corpus.texts_of("documents", rows_N), rules, "scoring test documents", searching
    )
    short, figures = _measure_blocks(blocks, truth, filters, weights_L, dict(in_bins(frequency_L)))
    return _Ranked(rows_N, truth, short, figures, frozenset(searching))


def _describe_parts(ranked: _Ranked, metrics: list[str]) -> dict[str, Any]:
    """Return the metrics of the fusion and of each part, and whose candidates each ranked."""
    totals = {name: ranked.figures[name].total() for name in reversed(ranked.figures)}
    return {
        "ablation": {name: {metric: total[metric] for metric in metrics} for name, total in totals.items()},
        "candidates": {name: OWN if name in ranked.searching else ALL for name in totals},
    }


def _confusions(ranked: _Ranked, corpus: Corpus) -> list[dict[str, Any]]:
    """Return labels that are named for one another, by their titles."""
    confused = confusions(ranked.short, ranked.truth)
    titles = titles_of(corpus, [label for pair in confused for label in (pair.named, pair.missed)])
    return [
        {"named": titles[pair.named], "missed": titles[pair.missed], "documents": pair.documents} for pair in confused
    ]


def _calibration(ranked: _Ranked, fusion: FittedFusion) -> dict[str, Any] | None:
    """Return how true the probabilities are; None for a fusion that has none."""
    probability_NK = fusion.probabilities(ranked.short)
    return (
        None
        if probability_NK is None
        else calibration(probability_NK, hits(ranked.short, ranked.truth), len(ranked.truth.indices))
    )


def _no_label_note(short: Shortlist) -> str:
    """Return a note if test documents have no label: those without a known word, if all scores read words."""
    if not (count := int((~short.filled_NK.any(axis=1)).sum())):
        return ""
    return (
        f"{count:,} of {counted(len(short), 'test document')} ({count / len(short):.1%}) have no predicted label; a "
        "score by words has none for a text without a word of two train documents, for instance in a language without "
        "spaces: train a recipe that reads parts of words (words, house), shorter ones if this one does "
        "(scores.characters.terms.characters=2), or one with an encoder"
    )


def _label_shift_note(corpus: Corpus) -> str:
    """Return a note if most true labels of test documents have no train document, but those of validation have one.

    A fusion that is fitted on validation documents then ranks labels of train documents first.
    """
    frequency_L = corpus.labels.rows(corpus.rows(TRAIN)).frequency_L()
    positives = [corpus.labels.rows(corpus.rows(split)).indices for split in (VALIDATION, TEST)]
    if not all(map(len, positives)):
        return ""
    validation, test = (float((frequency_L[labels] == 0).mean()) for labels in positives)
    if not validation < 0.5 < test:
        return ""
    return (
        f"{test:.0%} of the true labels of test documents have no train document, but only "
        f"{validation:.0%} of those of validation documents, so the fusion learnt there to trust scores from "
        "train documents; give a validation file that resembles test, or train with --set fusion.rule=sum"
    )


def _measure_blocks(
    blocks: Iterable[tuple[slice, dict[str, Shortlist]]],
    truth: LabelMatrix,
    filters: LabelMatrix,
    weights_L: F64,
    bins: dict[str, Bool],
) -> tuple[Shortlist, dict[str, PerDocument]]:
    """Return the fusion's shortlists without filtered pairs, as long as metrics read, and the figures of each rule.

    Memory holds the candidates of one block, whatever their number is.
    """
    shortlists: list[Shortlist] = []
    figures: dict[str, list[PerDocument]] = {}
    for block, by_rule in blocks:
        docs = np.arange(block.start, block.stop)
        ranked = {name: without(short, filters.rows(docs)) for name, short in by_rule.items()}
        shortlists.append(ranked[FUSION].top(min(ranked[FUSION].k, max(RECALL_KS))))
        for name, values in of_each(ranked, truth.rows(docs), weights_L, bins).items():
            figures.setdefault(name, []).append(values)
    return Shortlist.stack(shortlists), {name: PerDocument.joined(each) for name, each in figures.items()}


def _learnt_from(
    corpus: Corpus, trained: TrainedEncoder, tables: LabelTables, fusion: FittedFusion, scores: tuple[str, ...]
) -> LearntFrom:
    """Return what each part of the model learnt from; for a part that was not trained it follows from the corpus."""
    rows = TrainedOn.of(corpus, validation=tables.folds[-1].refit)
    return LearntFrom(
        encoder=TrainedOn.read(trained.history, TrainedOn.of(corpus, validation=False)),
        classifier=TrainedOn.read(tables.history, rows),
        joint=trained.rows_LD is not None,
        fitted=fusion.rule.learns and len(corpus.rows(VALIDATION)) > 0,
        published=len(corpus.published_rows()),
        dial=fusion.turns,
        instead=fusion.instead,
        scores=scores,
        fitted_on=(rows.train, rows.validation),
    )


def _latency(context: Context[EvaluationSettings], predictor: Predictor, corpus: Corpus, rows: I64) -> None:
    """Time single texts from string to labels. The figures depend on the machine, so they stay outside the artefact."""
    texts = corpus.texts_of("documents", rows[: context.settings.latency_queries])
    if times := latencies_ms(predictor, texts):
        p50, p99 = (float(np.quantile(times, share)) for share in (0.5, 0.99))
        context.costs.update({"latency_p50_ms": p50, "latency_p99_ms": p99})
