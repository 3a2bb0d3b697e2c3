"""Stage tokens: tokenises the corpus, once for each tokenizer that an experiment of the dataset needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xc_core.artifacts import MANIFEST, read_manifest
from xc_core.chain.context import Context
from xc_core.chain.dataset import TokensConfig
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN
from xc_core.data.tokenizer import load
from xc_core.data.tokens import extend_tokens, store_name, write_tokens
from xc_core.errors import DataError, MissingError, UnavailableError, XCError, bare
from xc_core.progress import report


def run(context: Context[TokensConfig]) -> None:
    """Tokenise documents and labels with every tokenizer of the settings.

    One that fails is reported and left out, so that it fails its own recipes only; if all fail, the first error is
    raised.
    """
    failed: dict[str, XCError] = {}
    for name in context.settings.tokenizers:
        try:
            _tokenise(context, context.read(Corpus), name)
        except (DataError, MissingError, UnavailableError) as error:
            failed[name] = error
            report(f"tokens: no tokens of the encoder {bare(name)}, so its recipes cannot run: {error}")
    if len(failed) == len(context.settings.tokenizers):
        raise next(iter(failed.values()))


def extend(context: Context[TokensConfig]) -> None:
    """Tokenise labels that are new at the end, with the vocabularies that there are; all other tokens stay.

    A tokenizer that was left out before is left out again.
    """
    corpus, files = context.read(Corpus), read_manifest(context.old).files

    def texts_from(first: int) -> list[str]:
        return corpus.texts_of("labels", np.arange(first, corpus.num_labels))

    for name in context.settings.tokenizers:
        if f"{store_name(name)}/{MANIFEST}" in files:
            context.build.facts[name] = extend_tokens(context.build, context.old / store_name(name), texts_from)


def _tokenise(context: Context[TokensConfig], corpus: Corpus, name: str) -> None:
    tokenizer = load(name, _vocabulary_texts(corpus), context.settings.vocabulary)
    sides = {
        "documents": (corpus.num_documents, corpus.texts("documents")),
        "labels": (corpus.num_labels, corpus.texts("labels")),
    }
    context.build.facts[name] = write_tokens(context.build, tokenizer, sides, context.settings.max_tokens)


def _vocabulary_texts(corpus: Corpus) -> Iterator[list[str]]:
    """Yield the texts that a vocabulary may be made from: labels and train documents, never test documents."""
    train = set(corpus.rows(TRAIN).tolist())
    yield from corpus.texts("labels")
    start = 0
    for block in corpus.texts("documents"):
        yield [text for offset, text in enumerate(block) if start + offset in train]
        start += len(block)
