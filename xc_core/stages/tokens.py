"""Stage tokens: the texts of a corpus, once per tokenizer that an experiment of the dataset needs.

Takes: corpus.                                        Gives: one token store a tokenizer.
May import: data.corpus, .tokenizer, .tokens, stages.  Never: pads.
"""

from __future__ import annotations

from xc_core import artifacts
from xc_core.data.corpus import Corpus
from xc_core.data.tokenizer import load
from xc_core.data.tokens import KIND, write_store
from xc_core.stages.runner import Context
from xc_core.stages.workspace import store_name


def run(context: Context) -> None:
    """Tokenise documents and labels with every tokenizer of the config."""
    corpus = Corpus.open(context.input("corpus"))
    config = context.config
    for name in config.tokenizers:
        tokenizer = load(name, _all_texts(corpus, config.fields), config.vocabulary)
        with artifacts.building(context.build.path / store_name(name), kind=KIND) as store:
            sides = {
                "documents": (corpus.num_documents, corpus.texts("documents", config.fields)),
                "labels": (corpus.num_labels, corpus.texts("labels", config.fields)),
            }
            write_store(store, tokenizer, sides, config.max_tokens)
            context.build.facts[name] = store.facts["sides"]


def _all_texts(corpus: Corpus, fields: tuple[str, ...]):  # type: ignore[no-untyped-def]
    """Yield the texts a vocabulary may be made from: labels and train documents are both known before any test."""
    train = set(corpus.rows("train").tolist())
    yield from corpus.texts("labels", fields)
    start = 0
    for block in corpus.texts("documents", fields):
        yield [text for offset, text in enumerate(block) if start + offset in train]
        start += len(block)
