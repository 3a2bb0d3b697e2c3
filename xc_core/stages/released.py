"""What the last stations share: the model as it stands, put together from the artefacts of the chain.

Takes: a Context that reads classifier, embeddings, index and fusion.   Gives: Sources, Searchers, Scorer, weights.
May import: ann, data, fusion, infer, metrics, sampling, stages.runner.           Never: fits.
"""

from __future__ import annotations

import numpy as np

from xc_core.ann import build_index, load_index
from xc_core.artifacts import verify
from xc_core.data.corpus import Corpus
from xc_core.data.splits import VALIDATION
from xc_core.fusion import BY_WORDS, LEXICAL, NOISE, VOTES, FusionConfig, Lexical, Neighbours, Sources, load_fusion
from xc_core.infer.score import Scorer, Searchers
from xc_core.metrics.propensity import inverse_propensity
from xc_core.sampling import load_noise
from xc_core.shapes import F64, I64, Embeddings
from xc_core.stages.clusters import HELD, trainings
from xc_core.stages.runner import Context


def unseen(context: Context, corpus: Corpus, most: int) -> dict[str, I64]:
    """Return at most ``most`` validation documents by the training of M4 that has not seen them, each rising.

    That is what serves ("") where it has not; a half that no training has left out is not there.
    """
    if not _refitted(context):
        return {"": corpus.rows(VALIDATION)[:most]}
    folder = context.input("classifier")
    halves = zip(HELD, corpus.validation_halves(), strict=True)
    left_out = {name: half for name, half in halves if (folder / name).is_dir()}
    chosen = np.sort(np.concatenate([*left_out.values()]))[:most]
    return {name: own for name, half in left_out.items() if len(own := np.intersect1d(half, chosen))}


def _refitted(context: Context) -> bool:
    """Return whether what serves has seen validation documents."""
    return (context.input("classifier") / HELD[0]).is_dir()


def sources(context: Context, corpus: Corpus, config: FusionConfig, training: str = "") -> Sources:
    """Return where the features of ``config`` come from: of what serves, or of the ``training`` of that name.

    Frequencies, votes and words are of the documents that its rows were trained on.
    """
    for name in ("embeddings", "classifier"):
        verify(context.input(name), kind=name)
    label_LD = np.asarray(Embeddings.open(context.input("embeddings") / "labels.npy").vectors_ND)
    folder = context.input("classifier") / training
    rows_LD = np.load(folder / "rows.npy")
    rows = trainings(corpus, refit=_refitted(context))[training]
    truth = corpus.labels.rows(rows)
    voters = None
    if VOTES in config.needed:
        vectors = Embeddings.open(context.input("embeddings") / "documents.npy").vectors_ND
        voters = Neighbours.of(np.ascontiguousarray(vectors[rows]), truth)
    drawn_from = load_noise(folder) if NOISE in config.needed else None
    words = Lexical.load(folder / LEXICAL) if BY_WORDS & {*config.needed} else None
    return Sources(label_LD, rows_LD, truth.frequency_L(), voters, drawn_from, words)


def weights(corpus: Corpus) -> F64:
    """Return the inverse propensity of each label, by its frequency in the train file as published."""
    train = corpus.published_train()
    return inverse_propensity(train.frequency_L(), len(train), corpus.propensity)


def texts(context: Context, corpus: Corpus, own: Sources, rows: I64) -> list[str] | None:
    """Return the texts of the documents ``rows`` where ``own`` has a score of texts; they are not read where not."""
    return None if own.lexical is None else corpus.own_texts("documents", rows, context.experiment.tokens.fields)


def searchers(context: Context, training: str = "") -> Searchers:
    """Return the indexes of the stage index; for a ``training`` of another name, one over its rows as they are."""
    folder = context.input("index")
    verify(folder, kind="index")
    by_text = load_index(folder / "by_text") if (folder / "by_text").is_dir() else None
    if not training:
        return Searchers(load_index(folder / "by_row"), by_text)
    recipe = context.experiment.recipe
    assert recipe is not None
    rows_LD = np.load(context.input("classifier") / training / "rows.npy")
    if recipe.index.joined:
        rows_LD += np.load(context.input("embeddings") / "labels.npy")
    return Searchers(build_index(rows_LD, recipe.index.rows), by_text)


def scorer(context: Context, corpus: Corpus) -> Scorer:
    """Return the whole scoring, fusion included."""
    verify(context.input("fusion"), kind="fusion")
    fusion = load_fusion(context.input("fusion") / "fusion.json")
    return Scorer(searchers(context), sources(context, corpus, fusion.config), fusion)
