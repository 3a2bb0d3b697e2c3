"""Beam search in a label tree by loops over lists, written from the papers (Parabel, Bonsai) and omikuji's scores."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass


@dataclass
class Tree:
    """A node: for each child its weights by term, the bias at ``None``, and a node or a label."""

    children: list[tuple[dict[int | None, float], Tree | int]]

    @property
    def is_leaf(self) -> bool:
        return not isinstance(self.children[0][1], Tree)


def loss(text: dict[int, float], weights: dict[int | None, float]) -> float:
    margin = weights.get(None, 0.0) + sum(value * weights.get(term, 0.0) for term, value in text.items())
    return max(0.0, 1 - margin) ** 2


def reached(root: Tree, text: dict[int, float], beam: int) -> dict[int, float]:
    """The score of each label that a search reaches; of equal scores the first is followed."""
    level = [(0.0, root)]
    while not all(node.is_leaf for _, node in level):
        below: list[tuple[float, Tree]] = []
        for score, node in level:
            if node.is_leaf:
                below.append((score, node))
                continue
            for weights, child in node.children:
                assert isinstance(child, Tree)
                below.append((score - loss(text, weights), child))
        best = sorted(range(len(below)), key=lambda i: -below[i][0])[:beam]
        level = [below[i] for i in sorted(best)]
    found = {}
    for score, node in level:
        scores = [(score - loss(text, weights), label) for weights, label in node.children]
        for total, label in sorted(scores, key=lambda pair: -pair[0])[:beam]:
            assert isinstance(label, int)
            found[label] = math.exp(total)
    return found


def shortlist(trees: list[Tree], text: dict[int, float], beam: int, k: int) -> list[tuple[int, float]]:
    """The best labels and their mean scores over the trees; of equal ones the first label."""
    if not text:
        return []
    total: defaultdict[int, float] = defaultdict(float)
    for tree in trees:
        for label, score in reached(tree, text, beam).items():
            total[label] += score / len(trees)
    return sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
