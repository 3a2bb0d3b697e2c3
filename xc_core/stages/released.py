"""What the last stations share: the model as it stands, put together from the artefacts of the chain.

Takes: a Context that reads classifier, embeddings, index and fusion.   Gives: Sources, Searchers, Scorer.
May import: ann, data, fusion, infer, sampling, stages.runner.                    Never: fits.
"""

from __future__ import annotations

import numpy as np

from xc_core.ann import load_index
from xc_core.artifacts import verify
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN
from xc_core.fusion import BY_WORDS, LEXICAL, NOISE, VOTES, FusionConfig, Lexical, Neighbours, Sources, load_fusion
from xc_core.infer.score import Scorer, Searchers
from xc_core.sampling import load_noise
from xc_core.shapes import I64, Embeddings
from xc_core.stages.runner import Context


def sources(context: Context, corpus: Corpus, config: FusionConfig) -> Sources:
    """Return where the features of ``config`` come from; frequencies, votes and words are of train rows alone."""
    for name in ("embeddings", "classifier"):
        verify(context.input(name), kind=name)
    label_LD = np.asarray(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
    rows_LD = np.load(context.input("classifier") / "rows.npy")
    rows = corpus.rows(TRAIN)
    truth = corpus.labels.rows(rows)
    voters = None
    if VOTES in config.needed:
        vectors = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND
        voters = Neighbours.of(np.ascontiguousarray(vectors[rows]), truth)
    drawn_from = load_noise(context.input("classifier")) if NOISE in config.needed else None
    words = Lexical.load(context.input("classifier") / LEXICAL) if BY_WORDS & {*config.needed} else None
    return Sources(label_LD, rows_LD, truth.frequency_L(), voters, drawn_from, words)


def texts(context: Context, corpus: Corpus, own: Sources, rows: I64) -> list[str] | None:
    """Return the texts of the documents ``rows`` where ``own`` has a score of texts; they are not read where not."""
    return None if own.lexical is None else corpus.own_texts("documents", rows, context.experiment.tokens.fields)


def searchers(context: Context) -> Searchers:
    """Return the indexes of the stage index."""
    folder = context.input("index")
    verify(folder, kind="index")
    return Searchers(
        load_index(folder / "by_row"),
        load_index(folder / "by_text") if (folder / "by_text").is_dir() else None,
    )


def scorer(context: Context, corpus: Corpus) -> Scorer:
    """Return the whole scoring, fusion included."""
    verify(context.input("fusion"), kind="fusion")
    fusion = load_fusion(context.input("fusion") / "fusion.json")
    return Scorer(searchers(context), sources(context, corpus, fusion.config), fusion)
