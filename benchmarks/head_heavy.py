"""A synthetic corpus with about 20 labels per document, most of them frequent, and documents that say nothing.

``python -m benchmarks.head_heavy FOLDER`` writes it as CSV, for ``xc ingest FOLDER --dataset head-heavy``.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from xc_core.seeds import generator
from xc_core.shapes import F64


@dataclass(frozen=True, kw_only=True)
class HeadHeavy:
    """Label l is in p_l = ``top`` / rank^decay of all documents, and more often in those of its topic.

    There its probability is p_l (1 - focus + focus T), T topics, but at most 0.9; elsewhere it is lower, so that the
    share of all documents stays p_l. A noise document has no topic: its words are drawn from all topics, its labels
    from p_l. The name of a label is a word of its topic and its own number.
    """

    documents: int = 6000
    labels: int = 1000
    topics: int = 40
    top: float = 0.35
    """Share of the documents that have the most frequent label."""
    decay: float = 0.52
    """Exponent of the rank; with 1,000 labels 0.52 gives about 20 labels per document."""
    focus: float = 0.3
    """How much a topic says about its labels, between 0 and 1."""
    noise: float = 0.2
    """Share of the documents without a topic."""
    words: int = 30
    """Words of a topic."""
    length: int = 12
    """Words of a text."""
    seed: int = 0

    @property
    def share_L(self) -> F64:
        """The share of documents of each label, p_l."""
        return np.asarray(self.top / np.arange(1, self.labels + 1) ** self.decay, np.float64)

    def rows(self) -> list[tuple[str, str, list[str]]]:
        """Return (uid, text, names of the labels) of each document; documents without labels are left out."""
        random, documents, names = generator(self.seed, "head-heavy"), [], self.names()
        chances = self._chances()
        for number in range(self.documents):
            topic = -1 if random.random() < self.noise else int(random.integers(self.topics))
            label_ids = np.flatnonzero(random.random(self.labels) < chances[topic])
            topics = random.integers(self.topics, size=self.length) if topic < 0 else np.full(self.length, topic)
            words = random.integers(self.words, size=self.length)
            text = " ".join(f"t{t}w{word}" for t, word in zip(topics, words, strict=True))
            if len(label_ids):
                documents.append((f"D{number}", text, [names[label] for label in label_ids]))
        return documents

    def _chances(self) -> F64:
        """Return the probability of each label in a document of each topic, and of noise (topics + 1, labels)."""
        share_L, topic_L = self.share_L, np.arange(self.labels) % self.topics
        inside_L = np.minimum(0.9, share_L * (1 - self.focus + self.focus * self.topics))
        outside_L = (share_L - inside_L / self.topics) / (1 - 1 / self.topics)
        chances = np.where(topic_L == np.arange(self.topics)[:, None], inside_L, outside_L)
        return np.concatenate([chances, share_L[None]])

    def names(self) -> list[str]:
        """Return the name of each label."""
        words = generator(self.seed, "head-heavy-names").integers(self.words, size=self.labels)
        return [f"t{label % self.topics}w{word} n{label}" for label, word in enumerate(words)]


def write(corpus: HeadHeavy, folder: Path) -> None:
    """Write ``train.csv``; ``xc ingest`` splits it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["uid", "text", "labels"])
        table.writerows((uid, text, ";".join(labels)) for uid, text, labels in corpus.rows())


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Write the corpus to FOLDER."""
    write(HeadHeavy(), folder)


if __name__ == "__main__":
    main()
