"""TF-IDF of words and pairs of words by loops over dictionaries, written from the formula."""

from __future__ import annotations

import math
import re
from collections import Counter


def terms(text: str) -> list[str]:
    """Words of two characters or more, and pairs of neighbours."""
    return ngrams(text, 2)


def ngrams(text: str, longest: int) -> list[str]:
    """Words of two characters or more, and runs of up to ``longest`` of them."""
    words = re.findall(r"\b\w\w+\b", text.lower())
    return [" ".join(words[at : at + n]) for n in range(1, longest + 1) for at in range(len(words) - n + 1)]


def idf(texts: list[str], at_least: int) -> dict[str, float]:
    """ln((1 + N) / (1 + n)) + 1 of each term that ``at_least`` texts have."""
    counts = Counter(term for text in texts for term in set(terms(text)))
    return {term: math.log((1 + len(texts)) / (1 + n)) + 1 for term, n in counts.items() if n >= at_least}


def vector(text: str, known: dict[str, float]) -> dict[str, float]:
    """(1 + ln count) idf of each known term, divided by the vector's length."""
    counts = Counter(term for term in terms(text) if term in known)
    raw = {term: (1 + math.log(n)) * known[term] for term, n in counts.items()}
    length = math.sqrt(sum(value**2 for value in raw.values()))
    return {term: value / length for term, value in raw.items()}
