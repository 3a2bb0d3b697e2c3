"""Comparisons: clusters, encoding, and steps of the label table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from tests.naive import clusters as naive_clusters
from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.cluster import balanced_clusters, cohesion
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN
from xc_core.data.tokens import TokenStore
from xc_core.encoders import Encoder, TrainedEncoder, encode_rows
from xc_core.losses import Bce
from xc_core.sampling import All, Documents, NegativeSource
from xc_core.shapes import spans

_BLOCK = 2048
"""Tokens, or labels, of a product of a floor: as many as a pass of the encoder, or a block of a step, has."""


@case
def clustering(world: World) -> list[Row]:
    """Balanced clusters of the train documents against recursive 2-means with one Python call per cluster."""
    points = np.ascontiguousarray(world.doc_ND[world.split(TRAIN)[0]])
    rows = []
    for target in (8, 32):
        order, sizes = balanced_clusters(points, target, 0)
        naive = naive_clusters.balanced(points, target, 0)
        share = cohesion(points, order, sizes) / naive_clusters.cohesion_of_sums(points, naive)
        rows.append(
            compare(
                f"clusters of {target}, {len(points):,} documents",
                partial(balanced_clusters, points, target, 0),
                "recursion, float64, to convergence",
                partial(naive_clusters.balanced, points, target, 0),
                rounds=1,
                note=f"{share:.1%} of its cohesion",
            )
        )
    return rows


@case
def encoding(world: World) -> list[Row]:
    """Encoding without gradients, against a training's forward pass, batches in file order in fp32, and the products of
    its layers alone (the floor)."""
    trained, texts = world.read(TrainedEncoder), world.texts(1024)
    encoder, store = trained.encoder.eval(), TokenStore.of_texts(texts, trained.tokenizer)
    fast = encoder.without_gradients()
    rows, limit = np.arange(len(texts)), encoder.config.max_length

    def ours(encoder: Encoder = fast) -> torch.Tensor:
        with torch.inference_mode(), encoder.autocast():
            return encode_rows(encoder, store, rows).float()

    def in_order() -> torch.Tensor:
        with torch.inference_mode():
            batches = [store.batch(part, limit) for part in np.array_split(rows, 8)]
            return torch.cat([encoder(torch.from_numpy(b.ids_BT), torch.from_numpy(b.mask_BT)) for b in batches])

    def row(name: str, theirs: Callable[[], torch.Tensor]) -> Row:
        cosine = float((ours() * theirs()).sum(1).min())
        return compare(f"{len(texts):,} texts", ours, name, theirs, note=f"cosine at least {cosine:.4f}")

    floor = partial(_products, encoder, int(store.batch(rows, limit).mask_BT.sum()))
    return [
        row("the forward pass of a training, in the same passes", lambda: ours(encoder)),
        row("batches of 128 in file order, float32", in_order),
        compare(f"{len(texts):,} texts", ours, "products of its layers alone, no padding (floor)", floor),
    ]


def _products(encoder: Encoder, tokens: int) -> None:
    """Multiply as many vectors as there are tokens with the weights of all layers, in the encoder's number format."""
    layers = [
        module for name, module in encoder.named_modules() if isinstance(module, torch.nn.Linear) and "layer" in name
    ]
    with torch.inference_mode(), encoder.autocast():
        for span in spans(tokens, _BLOCK):
            for layer in layers:
                layer(torch.ones(span.stop - span.start, layer.in_features))


@case
def updates(world: World) -> list[Row]:
    """A step on the scored rows of the label table against Adam on a dense gradient of all rows."""
    touched = torch.from_numpy(np.random.default_rng(0).permutation(len(world.rows_LD))[:1500])
    gradient = torch.randn(len(touched), world.rows_LD.shape[1], generator=torch.Generator().manual_seed(0))
    rows = []
    for copies in (1, 16):
        initial = torch.from_numpy(np.tile(world.rows_LD, (copies, 1)))
        table = LabelTable(initial, TableConfig())
        dense = torch.nn.Parameter(initial.clone())
        adam = torch.optim.Adam([dense])

        def theirs(dense: torch.nn.Parameter = dense, adam: torch.optim.Optimizer = adam) -> None:
            dense.grad = torch.zeros_like(dense)
            dense.grad[touched] = gradient
            adam.step()

        rows.append(
            compare(
                f"{len(touched):,} of {len(initial):,} rows",
                partial(table.update, touched, gradient, 1.0),
                "Adam, dense",
                theirs,
                rounds=20,
            )
        )
    return rows


@case
def all_labels(world: World) -> list[Row]:
    """Renee's step (BCE over all labels in blocks) against autograd through the whole matrix of targets and Adam, and
    against its three products alone (the floor)."""
    _, truth = world.split(TRAIN)
    batch = np.arange(256)
    docs = torch.randn(256, world.rows_LD.shape[1], generator=torch.Generator().manual_seed(0), requires_grad=True)
    rows = []
    for copies in (1, 16):
        initial = torch.from_numpy(np.tile(world.rows_LD, (copies, 1)))
        wide = LabelMatrix(truth.indptr, truth.indices, len(initial))
        source = All(positives=0).build(Documents(wide), 0)
        loss = Bce(temperature=0.05, bias=10.0)
        head = TableHead(LabelTable(initial, TableConfig(unit=False)), loss)
        dense = torch.nn.Parameter(initial.clone())
        adam = Adam([dense], lr=0.01)

        def theirs(dense: torch.nn.Parameter = dense, adam: Adam = adam, wide: LabelMatrix = wide) -> Tensor:
            return _dense_step(docs, dense, adam, wide.rows(batch))

        def step(head: TableHead = head, source: NegativeSource = source) -> object:
            return head.descend(docs, source.pool(batch, 0), batch, 1.0)

        exact = theirs()
        ours = head.descend(docs, source.pool(batch, 0), batch, 1.0).gradient_BD
        assert ours is not None
        cosine = torch.nn.functional.cosine_similarity(ours.flatten(), exact.flatten(), dim=0)
        what = f"256 documents against {len(initial):,} labels"
        note = f"cosine of the documents' gradients {cosine:.6f}"
        rows.append(compare(what, step, "all at once, Adam", theirs, note=note))
    rows.append(compare(what, step, "its products alone (floor)", partial(_step_products, docs.detach(), initial)))
    return rows


def _step_products(docs_BD: Tensor, rows_LD: Tensor) -> None:
    """Multiply as a step does: scores, gradients of the documents, gradients of the rows."""
    for block in spans(len(rows_LD), _BLOCK):
        scores_BU = docs_BD @ rows_LD[block].T
        torch.mm(scores_BU, rows_LD[block])
        torch.mm(scores_BU.T, docs_BD)


def _dense_step(docs_BD: Tensor, rows: torch.nn.Parameter, adam: Adam, truth: LabelMatrix) -> Tensor:
    """Update all rows by Adam on the BCE of a whole B x L matrix; return the documents' gradient."""
    targets = torch.zeros(len(docs_BD), len(rows))
    docs, labels = truth.pairs()
    targets[torch.from_numpy(docs), torch.from_numpy(labels.astype(np.int64))] = 1.0
    logits = docs_BD @ rows.T / 0.05 - 10.0
    total = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    gradient, rows.grad = torch.autograd.grad(total / len(docs_BD), [docs_BD, rows])
    adam.step()
    return gradient
