"""Slow twin of the adversarial label tree: recursion over sets of labels, one (document, label) pair at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from xc_core.shapes import F32, F64


@dataclass(frozen=True)
class Node:
    """An inner node; a side without a real label is None, and then the other side is certain."""

    weight: F64
    """w, then b."""
    left: Tree
    right: Tree
    values: tuple[float, ...]
    """The regularised objective (8) after every split and every fit of weights."""


Tree = Node | int | None
"""What is below an inner node: another one, a label, or only padding."""


@dataclass(frozen=True)
class World:
    """The input of a fit: documents after PCA with a 1 appended, the documents of each label, lambda."""

    points: F64
    docs: list[list[int]]
    regulariser: float
    resplit: bool
    """False: split with the first w only and fit once, as the public code does (wrong)."""


def pca(docs: F32, width: int) -> tuple[F64, F64]:
    """Mean and leading directions from the singular vectors of the centred documents."""
    mean = docs.astype(np.float64).mean(0)
    directions = np.linalg.svd(docs - mean, full_matrices=False)[2][:width]
    return mean, np.array([upright(v) for v in directions]).T


def upright(vector: F64) -> F64:
    """The vector or its opposite, the one whose largest component is positive."""
    return vector if vector[np.argmax(np.abs(vector))] > 0 else -vector


def fit(features: F64, positives: list[set[int]], num_labels: int, regulariser: float, *, resplit: bool = True) -> Tree:
    """The tree over ``num_labels`` labels, padded to a power of two, from documents after PCA."""
    points = np.array([[*x, 1.0] for x in features])
    docs = [[i for i, own in enumerate(positives) if y in own] for y in range(num_labels)]
    size = 1
    while size < num_labels:
        size *= 2
    return _grow(World(points, docs, regulariser, resplit), list(range(size)))


def _grow(world: World, labels: list[int]) -> Tree:
    real = [y for y in labels if y < len(world.docs)]
    if not real:
        return None
    if len(labels) == 1:
        return real[0]
    weight = first_weight(world, real)
    right = _split(world, labels, weight)
    values = [objective(world, labels, right, weight)]
    while True:
        weight = climb(world, labels, right, weight)
        values.append(objective(world, labels, right, weight))
        new = _split(world, labels, weight)
        if new == right or not world.resplit:
            break
        right = new
        values.append(objective(world, labels, right, weight))
    sides = [_grow(world, [y for y in labels if (y in right) == side]) for side in (False, True)]
    return Node(weight, sides[0], sides[1], tuple(values))


def first_weight(world: World, real: list[int]) -> F64:
    """b = 0 and w = the dominant eigenvector of the covariance of the labels' summed documents."""
    sums = np.array(
        [sum((world.points[i][:-1] for i in world.docs[y]), np.zeros(len(world.points[0]) - 1)) for y in real]
    )
    covariance = np.cov(sums.T, bias=True).reshape(sums.shape[1], -1)
    return np.array([*upright(np.linalg.eigh(covariance)[1][:, -1]), 0.0])


def _split(world: World, labels: list[int], weight: F64) -> set[int]:
    """The half of the labels with the largest Delta; among equals the higher label."""

    def delta(y: int) -> float:
        return sum(float(weight @ world.points[i]) for i in world.docs[y]) if y < len(world.docs) else 0.0

    return set(sorted(labels, key=lambda y: (delta(y), y))[len(labels) // 2 :])


def pairs(world: World, labels: list[int], right: set[int]) -> list[tuple[F64, int]]:
    """(point, zeta) of every pair of a node."""
    real = [y for y in labels if y < len(world.docs)]
    return [(world.points[i], 1 if y in right else -1) for y in real for i in world.docs[y]]


def objective(world: World, labels: list[int], right: set[int], weight: F64) -> float:
    """Equation 8."""
    likelihood = sum(log_sigma(zeta * float(weight @ x)) for x, zeta in pairs(world, labels, right))
    return likelihood - world.regulariser * float(weight @ weight)


def gradient(world: World, labels: list[int], right: set[int], weight: F64) -> F64:
    """The gradient of equation 8 in (w, b)."""
    slopes = [zeta * math.exp(log_sigma(-zeta * float(weight @ x))) * x for x, zeta in pairs(world, labels, right)]
    return sum(slopes, np.zeros(len(weight))) - 2 * world.regulariser * weight


def climb(world: World, labels: list[int], right: set[int], weight: F64) -> F64:
    """Newton steps, halved until they improve the objective, until the gradient is zero."""
    for _ in range(100):
        slope = gradient(world, labels, right, weight)
        if float(np.abs(slope).max()) < 1e-11:
            break
        bend = 2 * world.regulariser * np.eye(len(weight))
        for x, _ in pairs(world, labels, right):
            z = float(weight @ x)
            bend += math.exp(log_sigma(z) + log_sigma(-z)) * np.outer(x, x)
        step = np.linalg.solve(bend, slope)
        before = objective(world, labels, right, weight)
        while objective(world, labels, right, weight + step) < before - 1e-12 * (1 + abs(before)):
            step = step / 2
        weight = weight + step
    return weight


def log_sigma(z: float) -> float:
    return -math.log1p(math.exp(-z)) if z > 0 else z - math.log1p(math.exp(z))


def log_prob(tree: Tree, x: F64, label: int) -> float:
    """Equation 7 by a walk; -inf if the label is not in the tree."""
    if not isinstance(tree, Node):
        return 0.0 if tree == label else -math.inf
    z = float(tree.weight @ np.array([*x, 1.0]))
    if tree.left is None or tree.right is None:
        return log_prob(tree.right if tree.left is None else tree.left, x, label)
    if label in leaves(tree.right):
        return log_sigma(z) + log_prob(tree.right, x, label)
    return log_sigma(-z) + log_prob(tree.left, x, label)


def distribution(tree: Tree, x: F64, num_labels: int) -> list[float]:
    """The probability of every label."""
    return [math.exp(log_prob(tree, x, label)) for label in range(num_labels)]


def leaves(tree: Tree) -> list[int]:
    """The labels below, from left to right."""
    if isinstance(tree, Node):
        return leaves(tree.left) + leaves(tree.right)
    return [] if tree is None else [tree]


def levels(tree: Tree) -> list[list[Node]]:
    """The inner nodes of each level, from left to right."""
    found, row = [], [tree]
    while inner := [node for node in row if isinstance(node, Node)]:
        found.append(inner)
        row = [side for node in inner for side in (node.left, node.right)]
    return found
