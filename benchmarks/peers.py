"""``python -m benchmarks.peers --dataset D``: what a user would pick today, measured by the same evaluator.

Label trees on words (omikuji), nearest documents by words or by an encoder that was not trained here, label texts by
that encoder, and sums of these. Each learns from train and validation documents and chooses nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
import numpy as np
from scipy import sparse

from benchmarks.harness import machine, today
from benchmarks.omikuji_files import quiet, write_rows
from xc_core.ann import Exact
from xc_core.chain import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TEST
from xc_core.data.tokenizer import load as load_tokenizer
from xc_core.data.tokens import TokenStore
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.encoders.embed import embed_rows
from xc_core.encoders.pooling import Pooling
from xc_core.errors import XCError
from xc_core.metrics.names import TABLE, titled
from xc_core.metrics.ranking import per_document, without
from xc_core.pretrained import declared_pooling
from xc_core.shapes import F32, PAD_ID, Shortlist, spans

DEEP: Final = 50
"""Labels that a peer names per document, at most."""
NEAREST: Final = 20
"""Train documents that vote."""
SHARPNESS: Final = 20.0
"""A cosine c between a document and a label text counts as exp(20 c), so that it can be added to other scores."""
_BLOCK: Final = 512
"""Test documents at a time."""

Scores: TypeAlias = Any
"""A scipy.sparse.csr_matrix of documents x labels; a label without a score has 0."""


@dataclass(frozen=True)
class Data:
    """Texts and labels of a dataset; what several peers need is made once."""

    corpus: Corpus
    encoder_name: str

    @cached_property
    def truth(self) -> LabelMatrix:
        """Labels of the train and validation documents."""
        return self.corpus.published_train()

    @cached_property
    def labels(self) -> Scores:
        """The same as a sparse matrix of ones."""
        truth = self.truth
        return sparse.csr_matrix((np.ones(len(truth.indices), np.float32), truth.indices, truth.indptr), truth.shape)

    @cached_property
    def texts(self) -> tuple[list[str], list[str]]:
        """Texts of train and validation documents, and of test documents."""
        rows = self.corpus.published_rows(), self.corpus.rows(TEST)
        return self.corpus.texts_of("documents", rows[0]), self.corpus.texts_of("documents", rows[1])

    @cached_property
    def words(self) -> tuple[Scores, Scores]:
        """TF-IDF of words and pairs of words in at least two documents, at most 300,000, of train and test texts."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        counts = TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, min_df=2, max_features=300_000, dtype=np.float32
        )
        return counts.fit_transform(self.texts[0]), counts.transform(self.texts[1])

    @cached_property
    def vectors(self) -> tuple[F32, F32]:
        """Unit vectors of train and test texts."""
        return self.embedded(self.texts[0]), self.embedded(self.texts[1])

    def embedded(self, texts: list[str]) -> F32:
        """Return unit vectors of texts, of their first 128 tokens, by the pooling that a model folder declares."""
        declared = declared_pooling(self.encoder_name)
        pooling = Pooling(declared) if declared in list(Pooling) else Pooling.MEAN
        config = EncoderConfig(name=self.encoder_name, max_length=128, pooling=pooling)
        tokenizer = load_tokenizer(config.tokenizer, texts=[self.texts[0]])
        store = TokenStore.of_texts(texts, tokenizer)
        encoder = build_encoder(config, tokenizer.vocabulary_size, seed=0)
        out = np.empty((len(texts), encoder.width), np.float32)
        embed_rows(encoder, store, np.arange(len(texts)), out, "encoding")
        return out


def label_trees(data: Data, *, k: int | None = None, depth: int | None = None) -> Scores:
    """omikuji, three trees: Parabel with its defaults; with ``k`` branches of any size and ``depth`` levels, Bonsai."""
    import omikuji

    parameters = omikuji.Model.default_hyper_param()
    if k is not None and depth is not None:
        parameters.cluster_balanced, parameters.cluster_k, parameters.max_depth = False, k, depth
    train, test = data.words
    rows = np.flatnonzero(np.diff(train.indptr))  # omikuji refuses a document without a word
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        write_rows(path, train[rows], data.truth.rows(rows))
        with quiet():
            model = omikuji.Model.train_on_data(str(path), parameters)
    slices = (slice(*ends) for ends in pairwise(test.indptr))
    rows_of_words = (list(zip(test.indices[row].tolist(), test.data[row].tolist(), strict=True)) for row in slices)
    predictions = [model.predict(row, top_k=DEEP) for row in rows_of_words]
    row_P = np.repeat(np.arange(len(predictions)), [len(prediction) for prediction in predictions])
    pairs = [pair for prediction in predictions for pair in prediction]
    label_P, score_P = np.array(pairs, np.float64).reshape(-1, 2).T
    cells = (score_P.astype(np.float32), (row_P, label_P.astype(np.int64)))
    return sparse.csr_matrix(cells, (len(predictions), data.corpus.num_labels))


def near_words(data: Data) -> Scores:
    """Votes of the nearest documents by the cosine of their TF-IDF words."""
    train, test = data.words
    blocks = ((test[rows] @ train.T).toarray() for rows in spans(test.shape[0], _BLOCK))
    return sparse.vstack([votes(cosines_BN, data.labels) for cosines_BN in blocks], format="csr")


def near_texts(data: Data) -> Scores:
    """Votes of the nearest documents by the cosine of their vectors."""
    train, test = data.vectors
    blocks = (test[rows] @ train.T for rows in spans(len(test), _BLOCK))
    return sparse.vstack([votes(cosines_BN, data.labels) for cosines_BN in blocks], format="csr")


def label_texts(data: Data) -> Scores:
    """The labels whose texts are nearest to the document."""
    label_LD = data.embedded(data.corpus.texts_of("labels", np.arange(data.corpus.num_labels)))
    nearest = Exact().build(label_LD).search(data.vectors[1], min(DEEP, len(label_LD)))
    return as_matrix(Shortlist(nearest.ids_NK, np.exp(SHARPNESS * nearest.scores_NK)), len(label_LD))


PEERS: Final[dict[str, Callable[[Data], Scores]]] = {
    "bonsai": partial(label_trees, k=100, depth=3),
    "parabel": label_trees,
    "near-words": near_words,
    "near-texts": near_texts,
    "label-texts": label_texts,
}
SUMS: Final = (
    ("bonsai", "near-words"),
    ("bonsai", "near-texts"),
    ("bonsai", "label-texts"),
    ("bonsai", "near-texts", "label-texts"),
    ("bonsai", "near-words", "near-texts", "label-texts"),
)
"""Peers whose scores are added with equal weights, each divided by its best score of the document."""


def votes(cosines_BN: F32, labels: Scores) -> Scores:
    """Return the sum over the ``NEAREST`` documents that have a label of their cosines, those above 0."""
    nearest = min(NEAREST, cosines_BN.shape[1])
    ids_BK = np.argpartition(-cosines_BN, nearest - 1, axis=1)[:, :nearest]
    weight_BK = np.maximum(np.take_along_axis(cosines_BN, ids_BK, 1), 0)
    indptr = np.arange(len(ids_BK) + 1) * nearest
    return sparse.csr_matrix((weight_BK.ravel(), ids_BK.ravel(), indptr), cosines_BN.shape) @ labels


def added(parts: list[Scores]) -> Scores:
    """Return the sum of scores, each divided by its best one of the document."""
    total = sparse.csr_matrix(parts[0].shape, dtype=np.float32)
    for part in parts:
        best_N = np.maximum(part.max(axis=1).toarray().ravel(), np.finfo(np.float32).tiny)
        total = total + sparse.diags(1 / best_N, dtype=np.float32) @ part
    return total


def as_matrix(short: Shortlist, num_labels: int) -> Scores:
    """Return a shortlist as a sparse matrix."""
    rows, columns = np.nonzero(short.filled_NK)
    cells = (short.scores_NK[rows, columns], (rows, short.ids_NK[rows, columns]))
    return sparse.csr_matrix(cells, (len(short), num_labels))


def best(scores: Scores, k: int = DEEP) -> Shortlist:
    """Return the ``k`` labels with the highest scores of each document."""
    ids_NK = np.full((scores.shape[0], k), PAD_ID, np.int32)
    scores_NK = np.full((scores.shape[0], k), -np.inf, np.float32)
    for row, (start, stop) in enumerate(pairwise(scores.indptr)):
        order = np.argsort(-scores.data[start:stop], kind="stable")[:k]
        ids_NK[row, : len(order)] = scores.indices[start:stop][order]
        scores_NK[row, : len(order)] = scores.data[start:stop][order]
    return Shortlist.ranked(ids_NK, scores_NK)


def measured(corpus: Corpus, scores: Scores) -> list[float]:
    """Return the figures of the columns, in percent, on all test documents, filtered pairs left out."""
    rows = corpus.rows(TEST)
    ranked = without(best(scores), corpus.filters.rows(rows))
    figures = per_document(ranked, corpus.labels.rows(rows), corpus.weights()).total()
    return [figures[name] for name in TABLE]


def measure(data: Data, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table: each peer with its CPU seconds, then the sums of those that were asked for."""
    yield "| peer | " + " | ".join(titled(name) for name in TABLE) + " | CPU s |"
    yield "| --- |" + " ---: |" * (len(TABLE) + 1)
    scores: dict[str, Scores] = {}
    seconds: dict[str, float] = {}
    for name in names:
        start = time.process_time()
        scores[name] = PEERS[name](data)
        seconds[name] = time.process_time() - start
        yield _line(name, measured(data.corpus, scores[name]), seconds[name])
    for parts in SUMS:
        if scores.keys() >= set(parts):
            figures = measured(data.corpus, added([scores[part] for part in parts]))
            yield _line(" + ".join(parts), figures, sum(seconds[part] for part in parts))


def _line(name: str, figures: Sequence[float], seconds: float) -> str:
    return f"| {name} | " + " | ".join(f"{figure:.2f}" for figure in figures) + f" | {seconds:.0f} |"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(PEERS)))
@click.option("--dataset", default="wordnet-mini", show_default=True)
@click.option(
    "--encoder", default="minilm", show_default=True, help="A packaged encoder, a folder, or a name on a hub."
)
def main(names: tuple[str, ...], dataset: str, encoder: str) -> None:
    """Measure peers on the test documents of an ingested dataset; a table in Markdown."""
    try:
        workspace = Workspace.find()
        workspace.params.dataset(dataset)
        corpus = workspace.open(Corpus, dataset)
    except XCError as error:
        click.echo(f"peers: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(f"{today()}, {machine()}, {dataset}, {len(corpus.rows(TEST)):,} test documents\n")
    for line in measure(Data(corpus, encoder), names or list(PEERS)):
        click.echo(line)


if __name__ == "__main__":
    main()
