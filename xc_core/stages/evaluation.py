"""Stage evaluation: the model judged on test documents, once, with everything decided before.

Takes: the whole chain.   Gives: metrics.json, report.json, per_document.npz, examples.json, three plots.
May import: data, encoders, fusion, infer, metrics, stages.  Never: fits, tunes or chooses anything.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from xc_core.artifacts import verify
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TEST, TRAIN
from xc_core.encoders import load_encoder
from xc_core.fusion import parts_of
from xc_core.infer.predictor import Predictor
from xc_core.infer.score import Scorer
from xc_core.metrics.ranking import KS, PerDocument, packed, per_document, without
from xc_core.metrics.report import report as full_report
from xc_core.progress import report as say
from xc_core.seeds import generator
from xc_core.shapes import I64, Embeddings, Shortlist
from xc_core.stages import plots
from xc_core.stages.clusters import batch_order
from xc_core.stages.encoder import tokenizer_of
from xc_core.stages.released import scorer, texts, weights
from xc_core.stages.runner import Context


def run(context: Context) -> None:
    """Score the test documents, drop filtered pairs, measure, draw."""
    corpus = Corpus.open(context.input("corpus"))
    judged = scorer(context, corpus)
    rows = corpus.rows(TEST)
    vectors = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND
    truth, filters = corpus.labels.rows(rows), corpus.filters.rows(rows)
    frequency_L, weights_L = corpus.published_train().frequency_L(), weights(corpus)
    rules = {"fusion": judged.fusion, **parts_of(judged.fusion.config)}
    words = texts(context, corpus, judged.sources, rows)
    found = judged.shortlist_rows(vectors, rows, rules, "scoring test documents", words)
    ranked = {name: without(short, filters) for name, short in found.items()}
    short = ranked["fusion"]
    content = full_report(short, truth, weights_L, frequency_L, seed=context.config.seed)
    figures = {name: per_document(short, truth, weights_L) for name, short in ranked.items()}
    content["ablation"] = {name: figures[name].total() for name in reversed(figures)}
    content["fusion_kind"] = judged.fusion.config.kind
    _write(context, content, figures)
    timed = _examples(context, corpus, rows, short, truth)
    _draw(context, corpus, content)
    _latency(context, corpus, judged, timed)
    metrics = content["metrics"]
    say(
        f"evaluation: P@1 {metrics['P_at_1']:.2f}, P@5 {metrics['P_at_5']:.2f}, PSP@5 {metrics['PSP_at_5']:.2f} on test"
    )


def _write(context: Context, content: dict[str, Any], figures: dict[str, PerDocument]) -> None:
    """Write metrics, report and every score's figures of each document (for paired tests: xc compare, leaderboard)."""
    context.build.json("metrics.json", content["metrics"])
    context.build.json("report.json", content)
    names = [f"{metric}_at_{k}" for metric in ("P", "nDCG", "PSP") for k in KS] + ["R_at_10"]
    arrays: dict[str, Any] = {**packed(figures, names)}
    np.savez(context.build.path / "per_document.npz", **arrays)
    context.build.facts["metrics"] = content["metrics"]


def _examples(context: Context, corpus: Corpus, rows: I64, short: Shortlist, truth: LabelMatrix) -> list[str]:
    """Write a few test texts with predicted and true labels; return the texts that latency is measured on."""
    config = context.config
    picked = generator(config.seed, "examples").permutation(len(rows))
    titles = corpus.table("labels")["title"]
    shown = picked[: config.examples]
    documents = corpus.table("documents", rows[shown])
    examples = []
    for at, document in zip(shown.tolist(), documents.iter_rows(named=True), strict=True):
        true = set(truth.row(at).tolist())
        predicted = [i for i in short.ids_NK[at, :5].tolist() if i >= 0]
        examples.append(
            {
                "uid": document["uid"],
                "text": f"{document['title']} {document['content']}".strip(),
                "predicted": [{"label": titles[i], "true": i in true} for i in predicted],
                "true": [titles[i] for i in sorted(true)],
            }
        )
    context.build.json("examples.json", examples)
    timed = corpus.table("documents", rows[picked[: config.latency_queries]])
    return [f"{title} {content}".strip() for title, content in zip(timed["title"], timed["content"], strict=True)]


def _draw(context: Context, corpus: Corpus, content: dict[str, Any]) -> None:
    """Draw training curves, gains by frequency decile, and the map of one document's labels."""
    histories = {}
    for stage in ("encoder", "classifier"):
        verify(context.input(stage), kind=stage)
        histories[stage] = json.loads((context.input(stage) / "history.json").read_text("utf-8"))
    title = f"{context.experiment.dataset} / {context.recipe}"
    plots.training_curves(context.build.path / "training.png", histories, title)
    plots.deciles(context.build.path / "deciles.png", content["deciles"], title)
    plots.label_map(context.build.path / "label_map.png", _map_inputs(context, corpus), title)


def _map_inputs(context: Context, corpus: Corpus) -> plots.LabelMap:
    """Choose, where there is one, an audited train document of 3 labels or more whose hard negatives are split evenly.

    Held is what the batch of M4's first epoch holds, missed what it does not.
    """
    train_rows = corpus.rows(TRAIN)
    truth = corpus.labels.rows(train_rows)
    mined = np.load(context.input("negatives") / "hard_negatives.npz")
    recipe = context.experiment.recipe
    assert recipe is not None
    batches = batch_order(context, recipe.classifier, len(train_rows)).batches(0)
    batch_of = np.empty(len(train_rows), np.int64)
    batch_of[np.concatenate(batches)] = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    docs = mined["docs"][:400]
    pools = [np.unique(truth.rows(batches[batch_of[doc]]).indices) for doc in docs]
    held = [np.isin(ids, pool) for ids, pool in zip(mined["ids"][:400], pools, strict=True)]
    few = np.minimum(truth.counts_N[docs], 3)
    best = int(np.argmin([abs(h.mean() - 0.5) - n for h, n in zip(held, few, strict=True)]))
    embeddings = context.input("embeddings")
    doc = int(docs[best])
    text = corpus.table("documents", train_rows[[doc]])["title"][0]
    return plots.LabelMap(
        label_LD=np.asarray(Embeddings.open(embeddings / "labels.npy").vectors_ND),
        doc_D=np.asarray(Embeddings.open(embeddings / "documents.npy").vectors_ND[train_rows[doc]]),
        text=str(text),
        titles=corpus.table("labels")["title"].to_list(),
        positives=truth.row(doc),
        in_batch=pools[best],
        held=mined["ids"][best][held[best]],
        missed=mined["ids"][best][~held[best] & (mined["ids"][best] >= 0)],
    )


def _latency(context: Context, corpus: Corpus, judged: Scorer, texts: list[str]) -> None:
    """Time single texts from string to labels; figures of this machine, kept outside the artefact."""
    verify(context.input("encoder"), kind="encoder")
    encoder = load_encoder(context.input("encoder"))
    tokenizer = tokenizer_of(context.input("encoder"), encoder)
    predictor = Predictor(tokenizer, encoder, judged, [], [])
    for text in texts[:5]:
        predictor.shortlist([text], 5)
    times = []
    for text in texts:
        started = time.perf_counter()
        predictor.shortlist([text], 5)
        times.append(1000 * (time.perf_counter() - started))
    if times:
        context.costs.update(
            {
                "latency_p50_ms": float(np.quantile(times, 0.5)),
                "latency_p99_ms": float(np.quantile(times, 0.99)),
            }
        )
