"""The comparisons, each a function of a World that returns rows; a new one is a new function in the table.

Takes: World.                        Gives: rows.
May import: everything, tests.naive. Never: times what is not the same work; the last column says how alike.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor
from torch import Tensor
from torch.optim import Adam
from transformers import AutoTokenizer

from benchmarks.harness import Row, compare
from benchmarks.world import World
from tests.naive import clusters as naive_clusters
from tests.naive import metrics as naive_metrics
from xc_core.ann import IndexConfig, build_index, recall
from xc_core.artifacts import building
from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.cluster import balanced_clusters, cohesion
from xc_core.data.ingest import IngestConfig, ingest
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.data.tokenizer import load as load_tokenizer
from xc_core.data.tokens import TokenStore
from xc_core.encoders import encode_rows, load_encoder
from xc_core.encoders.embed import encode_batch
from xc_core.fusion import Query, Sources, feature_table
from xc_core.fusion.boosting import BoostedTrees, Boosting
from xc_core.fusion.neighbours import EXACT_UP_TO, NEAREST, Neighbours
from xc_core.fusion.tree import RegressionTree
from xc_core.infer.score import distinct
from xc_core.losses import LossConfig
from xc_core.metrics.propensity import inverse_propensity
from xc_core.metrics.ranking import per_document
from xc_core.pretrained import minilm
from xc_core.sampling import NEGATIVES, NegativesConfig
from xc_core.shapes import F32, F64, I64, Shortlist

CASES: dict[str, Callable[[World], list[Row]]] = {}


def case(function: Callable[[World], list[Row]]) -> Callable[[World], list[Row]]:
    """Enter a function into the table under its name."""
    CASES[function.__name__] = function
    return function


@case
def clustering(world: World) -> list[Row]:
    """Balanced clusters of the train documents against recursive 2-means on all points, a Python call a cluster."""
    points = np.ascontiguousarray(world.doc_ND[world.split(TRAIN)[0]])
    rows = []
    for target in (8, 32):
        order, sizes = balanced_clusters(points, target, 0)
        slow = naive_clusters.balanced(points, target, 0)
        share = cohesion(points, order, sizes) / naive_clusters.cohesion_of_sums(points, slow)
        rows.append(
            compare(
                f"clusters of {target}, {len(points):,} documents",
                lambda target=target: balanced_clusters(points, target, 0),
                "recursion, float64, to convergence",
                lambda target=target: naive_clusters.balanced(points, target, 0),
                rounds=1,
                note=f"{share:.1%} of its cohesion",
            )
        )
    return rows


@case
def search(world: World) -> list[Row]:
    """Search of the classifier rows against faiss, in batches of 1,024 and one by one."""
    rows_LD, k = world.rows_LD, 100
    queries = np.ascontiguousarray(world.doc_ND[world.split(VALIDATION)[0]])
    exact = build_index(rows_LD, IndexConfig(kind="exact"))
    flat = faiss.IndexFlatIP(rows_LD.shape[1])
    flat.add(rows_LD)
    truth = exact.search(queries, k)
    ids = flat.search(queries, k)[1].astype(np.int32)
    same = recall(Shortlist.ranked(ids, np.zeros(ids.shape, np.float32)), truth)
    one = np.ascontiguousarray(queries[:1])
    what = f"{k} best of {len(rows_LD):,} labels"
    return [
        compare(
            f"{what}, {len(queries):,} queries",
            lambda: exact.search(queries, k),
            "faiss IndexFlatIP",
            lambda: flat.search(queries, k),
            note=f"{same:.3%} of the labels",
        ),
        compare(
            f"{what}, 1 query",
            lambda: exact.search(one, k),
            "faiss IndexFlatIP",
            lambda: flat.search(one, k),
            rounds=200,
        ),
    ]


@case
def metrics(world: World) -> list[Row]:
    """The evaluator against a loop over documents and ranks."""
    rows, truth = world.split(TEST)
    short = build_index(world.rows_LD, IndexConfig(kind="exact")).search(np.ascontiguousarray(world.doc_ND[rows]), 100)
    train = world.corpus.published_train()
    frequency = train.frequency_L()
    weights = inverse_propensity(frequency, len(train), world.corpus.propensity)
    ranked, sets = short.ids_NK.tolist(), [set(truth.row(i).tolist()) for i in range(len(truth))]
    ours = per_document(short, truth, weights).total()
    theirs = naive_metrics.metrics(ranked, sets, weights.tolist())
    gap = max(abs(ours[name] - theirs[name]) for name in theirs)
    return [
        compare(
            f"all metrics of {len(rows):,} documents",
            lambda: per_document(short, truth, weights).total(),
            "a loop over documents",
            lambda: naive_metrics.metrics(ranked, sets, weights.tolist()),
            note=f"{gap:.0e} points apart at most",
        )
    ]


def _candidates(world: World) -> tuple[F32, F64, I64]:
    """Return features, targets and document of the validation documents' candidates, one a pair."""
    rows, truth = world.split(VALIDATION)
    docs = np.ascontiguousarray(world.doc_ND[rows])
    searched = [
        build_index(v, IndexConfig(kind="exact")).search(docs, 100).ids_NK for v in (world.rows_LD, world.label_LD)
    ]
    ids = distinct(np.concatenate(searched, axis=1))
    query = Query(docs, Sources(world.label_LD, world.rows_LD, world.split(TRAIN)[1].frequency_L()))
    filled = ids != -1
    features = feature_table(("label_text", "classifier", "frequency"), query, ids)[filled]
    own = np.arange(len(rows))[:, None]
    return features, truth.contains(own, ids)[filled].astype(np.float64), np.broadcast_to(own, ids.shape)[filled]


@case
def tree(world: World) -> list[Row]:
    """The fusion tree against scikit-learn's exact one, on the validation documents' candidates."""
    features, targets, _ = _candidates(world)
    what = f"{len(targets):,} pairs, depth 7"

    def ours() -> RegressionTree:
        return RegressionTree.fit(features, targets, depth=7, min_leaf=1)

    def theirs() -> DecisionTreeRegressor:
        return DecisionTreeRegressor(max_depth=7, random_state=0).fit(features, targets)

    return _fitted_and_asked(what, ours, theirs, features, targets)


@case
def boosting(world: World) -> list[Row]:
    """The boosted trees of house against scikit-learn's, which draws pairs where ours draws documents."""
    features, targets, docs = _candidates(world)
    what = f"{len(targets):,} pairs, 30 trees of depth 4"
    settings = Boosting(trees=30, shrinkage=0.15, depth=4, min_leaf=20)
    share = settings.most / len(np.unique(docs))

    def ours() -> BoostedTrees:
        return settings.fit(features, targets, docs)

    def theirs() -> GradientBoostingRegressor:
        made = GradientBoostingRegressor(
            n_estimators=30, learning_rate=0.15, max_depth=4, min_samples_leaf=20, subsample=share, random_state=0
        )
        return made.fit(features, targets)

    return _fitted_and_asked(what, ours, theirs, features, targets)


def _fitted_and_asked(what: str, ours: Callable[[], Any], theirs: Callable[[], Any], x: F32, y: F64) -> list[Row]:
    """Compare fitting and predicting of two models."""
    own, other = ours(), theirs()
    errors = [float(np.mean((model.predict(x) - y) ** 2)) for model in (own, other)]
    note = f"squared error {errors[0]:.6f} and {errors[1]:.6f}"
    return [
        compare(f"fit, {what}", ours, "scikit-learn", theirs, rounds=3, note=note),
        compare(f"predict, {what}", lambda: own.predict(x), "scikit-learn", lambda: other.predict(x)),
    ]


@case
def cells(world: World) -> list[Row]:
    """The nearest documents searched in cells, as where there are many, against all of them compared."""
    docs = np.ascontiguousarray(world.doc_ND[world.corpus.published_rows()])
    queries = np.ascontiguousarray(world.doc_ND[world.split(TEST)[0][:2000]])
    ours, exact = (build_index(docs, own) for own in (Neighbours.searched(EXACT_UP_TO + 1), IndexConfig(kind="exact")))
    found = recall(ours.search(queries, NEAREST), exact.search(queries, NEAREST))
    what, one = f"{NEAREST} nearest of {len(docs):,} documents", np.ascontiguousarray(queries[:1])
    return [
        compare(
            f"{what}, {len(queries):,} queries",
            lambda: ours.search(queries, NEAREST),
            "all compared",
            lambda: exact.search(queries, NEAREST),
            note=f"{found:.1%} of the documents",
        ),
        compare(
            f"{what}, 1 query",
            lambda: ours.search(one, NEAREST),
            "all compared",
            lambda: exact.search(one, NEAREST),
            rounds=200,
        ),
    ]


@case
def reading(world: World) -> list[Row]:
    """Ingest (checks, hashes and Parquet included) against reading the same JSON with a loop."""
    raw = world.workspace.raw(world.dataset)
    if not (raw / "trn.json.gz").is_file():
        return []

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder, building(Path(folder) / "corpus", kind="corpus") as at:
            ingest(raw, at, IngestConfig())

    def theirs() -> int:
        size = 0
        for name in ("trn", "tst", "lbl"):
            with gzip.open(raw / f"{name}.json.gz", "rt", encoding="utf-8") as lines:
                size += sum(len(json.loads(line)["content"]) for line in lines)
        return size

    count = len(world.corpus.labels) + world.corpus.labels.num_labels
    return [compare(f"ingest of {count:,} texts", ours, "json.loads, nothing checked or written", theirs, rounds=3)]


@case
def tokens(world: World) -> list[Row]:
    """Batches of the token store against tokenising anew in every epoch."""
    tokenizer = load_tokenizer("minilm")
    texts = world.texts(8192)
    store = TokenStore.of_texts(texts, tokenizer)
    theirs = AutoTokenizer.from_pretrained(str(minilm()))
    batches = np.random.default_rng(0).permutation(len(texts)).reshape(-1, 128)
    same = all(
        np.array_equal(
            store.batch(b, 64).ids_BT,
            theirs([texts[i] for i in b], padding=True, truncation=True, max_length=64, return_tensors="np")[
                "input_ids"
            ],
        )
        for b in batches[:8]
    )
    return [
        compare(
            f"{len(batches)} batches of 128",
            lambda: [store.batch(b, 64) for b in batches],
            "transformers' fast tokenizer",
            lambda: [
                theirs([texts[i] for i in b], padding=True, truncation=True, max_length=64, return_tensors="np")
                for b in batches
            ],
            rounds=3,
            note="the same ids" if same else "DIFFERENT ids",
        )
    ]


@case
def encoding(world: World) -> list[Row]:
    """Encoding by like lengths in the processor's best precision, against batches as they come, in float32."""
    encoder = load_encoder(world.folder("encoder")).eval()
    texts = world.texts(1024)
    store = TokenStore.of_texts(texts, load_tokenizer("minilm"))
    rows, limit = np.arange(len(texts)), encoder.config.max_length

    def ours() -> torch.Tensor:
        with torch.inference_mode(), encoder.autocast():
            return encode_rows(encoder, store, rows).float()

    def theirs() -> torch.Tensor:
        with torch.inference_mode():
            return torch.cat([encode_batch(encoder, store.batch(part, limit)) for part in np.array_split(rows, 8)])

    cosine = float((ours() * theirs()).sum(1).min())
    return [
        compare(
            f"{len(texts):,} texts",
            ours,
            "batches of 128 in file order, float32",
            theirs,
            rounds=3,
            note=f"cosine at least {cosine:.4f}",
        )
    ]


@case
def updates(world: World) -> list[Row]:
    """A step on the touched rows of the label table against Adam on a dense gradient of all of them."""
    touched = torch.from_numpy(np.random.default_rng(0).permutation(len(world.rows_LD))[:1500])
    gradient = torch.randn(len(touched), world.rows_LD.shape[1], generator=torch.Generator().manual_seed(0))
    rows = []
    for copies in (1, 16):
        start = torch.from_numpy(np.tile(world.rows_LD, (copies, 1)))
        table = LabelTable(start, TableConfig())
        dense = torch.nn.Parameter(start.clone())
        adam = torch.optim.Adam([dense])

        def theirs(dense: torch.nn.Parameter = dense, adam: torch.optim.Optimizer = adam) -> None:
            dense.grad = torch.zeros_like(dense)
            dense.grad[touched] = gradient
            adam.step()

        rows.append(
            compare(
                f"1,500 of {len(start):,} rows",
                lambda table=table: table.update(touched, gradient, 1.0),
                "Adam, dense",
                theirs,
                rounds=20,
            )
        )
    return rows


@case
def all_labels(world: World) -> list[Row]:
    """Renee's step, BCE over all labels in blocks, against autograd through the whole matrix of targets and Adam."""
    _, truth = world.split(TRAIN)
    batch = np.arange(256)
    docs = torch.randn(256, world.rows_LD.shape[1], generator=torch.Generator().manual_seed(0), requires_grad=True)
    rows = []
    for copies in (1, 16):
        start = torch.from_numpy(np.tile(world.rows_LD, (copies, 1)))
        wide = LabelMatrix(truth.indptr, truth.indices, len(start))
        source = NEGATIVES["all"](NegativesConfig(kind="all", positives=0), wide, 0)
        loss = LossConfig(name="bce", temperature=0.05, bias=10.0).build()
        head = TableHead(LabelTable(start, TableConfig(unit=False)), loss)
        dense = torch.nn.Parameter(start.clone())
        adam = Adam([dense], lr=0.01)

        def theirs(dense: torch.nn.Parameter = dense, adam: Adam = adam, wide: LabelMatrix = wide) -> Tensor:
            return _dense_step(docs, dense, adam, wide.rows(batch))

        exact = theirs()
        ours = head.descend(docs, source.pool(batch, 0), batch, 1.0).gradient_BD
        assert ours is not None
        alike = torch.nn.functional.cosine_similarity(ours.flatten(), exact.flatten(), dim=0)
        rows.append(
            compare(
                f"256 documents against {len(start):,} labels",
                lambda head=head, source=source: head.descend(docs, source.pool(batch, 0), batch, 1.0),
                "all at once, Adam",
                theirs,
                note=f"cosine of the documents' gradients {float(alike):.6f}",
            )
        )
    return rows


def _dense_step(docs_BD: Tensor, rows: torch.nn.Parameter, adam: Adam, truth: LabelMatrix) -> Tensor:
    """Update all rows by Adam on the BCE of a whole B x L matrix; return the documents' gradient."""
    targets = torch.zeros(len(docs_BD), len(rows))
    at, labels = truth.pairs()
    targets[torch.from_numpy(at), torch.from_numpy(labels.astype(np.int64))] = 1.0
    logits = docs_BD @ rows.T / 0.05 - 10.0
    total = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    gradient, rows.grad = torch.autograd.grad(total / len(docs_BD), [docs_BD, rows])
    adam.step()
    return gradient
