"""Stage tokens: tokenises the corpus, once for each tokenizer that an experiment of the dataset needs."""

from __future__ import annotations

from collections.abc import Iterator

from xc_core.artifacts import MADE, Made, read_made, verify
from xc_core.chain.context import Context
from xc_core.chain.dataset import TokensConfig
from xc_core.chain.extension import EXTENDED_FROM
from xc_core.data.corpus import Corpus
from xc_core.data.splits import TRAIN
from xc_core.data.tokenizer import load
from xc_core.data.tokens import Tokenised, extend_tokens, store_name, write_tokens
from xc_core.errors import CorruptError, DataError, MissingError, UnavailableError, XCError, bare
from xc_core.linked import link_files
from xc_core.manifests import MANIFEST, read_manifest
from xc_core.pretrained import FROM_CORPUS, tokenizer_part


def run(context: Context[TokensConfig]) -> None:
    """Tokenise documents and labels with every tokenizer of the settings.

    The store of a tokenizer is taken over from the present artefact if nothing that it depends on has changed. One that
    fails is reported and left out, so that it fails its own recipes only; if all fail, the first error is raised.
    """
    failed: dict[str, XCError] = {}
    for name in context.settings.tokenizers:
        try:
            if not _reuse_store(context, name):
                _tokenise(context, context.read(Corpus), name)
        except (DataError, MissingError, UnavailableError) as error:
            failed[name] = error
            context.report(f"tokens: no tokens of the encoder {bare(name)}, so its recipes cannot run: {error}")
    if len(failed) == len(context.settings.tokenizers):
        raise next(iter(failed.values()))


def extend(context: Context[TokensConfig]) -> None:
    """Tokenise labels that are new at the end, with the vocabularies that there are; all other tokens stay.

    A tokenizer that was left out before is left out again.
    """
    corpus, files = context.read(Corpus), read_manifest(context.previous).files
    for name in context.settings.tokenizers:
        if f"{store_name(name)}/{MANIFEST}" in files:
            store = context.previous / store_name(name)
            context.build.facts[name] = extend_tokens(context.build, store, corpus.label_texts)


def _reuse_store(context: Context[TokensConfig], name: str) -> bool:
    """Link a tokenizer's store of the present artefact if a run would write the same again; return True if linked."""
    made, folder = read_made(context.previous), store_name(name)
    if not _unchanged(made, context, name) or not (context.previous / folder / MADE).is_file():
        return False
    try:
        files = verify(context.previous / folder, kind=Tokenised.kind).files
    except (CorruptError, MissingError):
        return False
    link_files(context.previous, context.build.path, [f"{folder}/{file}" for file in (*files, MANIFEST, MADE)])
    context.build.facts[name] = made.facts[name]
    context.report(f"tokens: the tokens of the encoder {bare(name)} are kept, nothing changed for them")
    return True


def _unchanged(made: Made, context: Context[TokensConfig], name: str) -> bool:
    """Return True if the present artefact, made as ``made`` says, has the tokens that a run would write.

    False if the whole artefact is up to date: then the run is forced. False after an extension, whose vocabulary is
    that of fewer labels.
    """
    current, settings = context.build.origin, made.settings if isinstance(made.settings, dict) else {}
    if made.fingerprint == current.fingerprint or EXTENDED_FROM in made.facts or name not in made.facts:
        return False
    parts = ("code", Corpus.kind, tokenizer_part(name))
    fields = ("max_tokens", "vocabulary") if name == FROM_CORPUS else ("max_tokens",)
    return all(made.depends.get(part) == current.depends.get(part) for part in parts) and all(
        settings.get(field) == getattr(context.settings, field) for field in fields
    )


def _tokenise(context: Context[TokensConfig], corpus: Corpus, name: str) -> None:
    tokenizer = load(name, _vocabulary_texts(corpus), context.settings.vocabulary)
    context.build.facts[name] = write_tokens(context.build, tokenizer, corpus.sides(), context.settings.max_tokens)


def _vocabulary_texts(corpus: Corpus) -> Iterator[list[str]]:
    """Yield the texts that a vocabulary may be made from: labels and train documents, never test documents."""
    yield from corpus.texts("labels")
    yield from corpus.texts("documents", rows=corpus.rows(TRAIN))
