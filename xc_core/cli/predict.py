"""``xc predict``: the labels of a text, from the champion or a named recipe."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from xc_core import canonical
from xc_core.cli.champions import source_of
from xc_core.cli.options import Number, OpenedPath, device_option
from xc_core.errors import UsageError
from xc_core.plugins import importing
from xc_core.progress import report
from xc_core.visible import INK, counted, escaped, percent, printable

if TYPE_CHECKING:
    from xc_core.infer.champion import Champion
    from xc_core.infer.predictor import Prediction, Predictor

_MAX_BYTES: Final = 16 << 20
_MAX_LINES: Final = 100_000
"""What the standard input may have: it is in memory, with all answers."""


@click.command(short_help="Ask the model for the labels of a text.")
@click.argument("texts", nargs=-1)
@click.option("--dataset", default=None, help="Name of the dataset; its champion answers.")
@click.option("--recipe", default=None, help="Ask this recipe's packed model instead of the champion.")
@click.option("--bundle", type=OpenedPath(), default=None, help="Ask the packed model in this folder.")
@click.option("-k", default=5, show_default=True, help="Labels per text.")
@click.option(
    "--tail",
    type=Number(),
    default=None,
    help="From 0, the likeliest labels (best P@k), to 1, rare labels higher (best PSP@k); by default the model's own.",
)
@click.option(
    "--min-probability",
    type=Number(),
    default=0.0,
    show_default=True,
    metavar="P",
    help="Leave out labels that are less likely to be right, from 0 to 1; a text may have none left.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list per text.")
@click.option("--input", type=OpenedPath(), default=None, help="A table of texts: .parquet, .csv, .tsv, .jsonl.")
@click.option("--output", type=OpenedPath(), default=None, help="The .parquet or .jsonl to write.")
@click.option("--part", default=None, metavar="I/N", help="Answer part I of N of --input; N processes share a file.")
@click.option("--column", default=None, help="Column or field of --input with the text.  [default: text]")
@device_option
def predict(
    texts: tuple[str, ...],
    dataset: str | None,
    recipe: str | None,
    bundle: Path | None,
    k: int,
    tail: float | None,
    min_probability: float,
    **options: Any,
) -> None:
    """Print the K best labels of each text; without TEXTS, of each line of the standard input.

    A line has the score of a label, the probability that it is right, its title and its uid.

    With --input and --output, answer a file of any size block by block. The same command resumes if it was stopped.

    With --part I/N too, N processes share the file, on one machine or several with a shared disk. When all have ended,
    the command without --part answers what a lost process left and writes the output.
    """
    as_json, asked = options.pop("as_json"), Asked(k, tail, min_probability)
    if options["input"] is not None or options["output"] is not None:
        if texts or options["input"] is None or options["output"] is None:
            raise UsageError("one of --input and --output, or texts beside them", expected="both, and no texts",
                             do="give both files")  # fmt: skip
        if as_json:
            raise UsageError("--json with files", expected="the format in the name of --output: .parquet or .jsonl",
                             do="drop --json")  # fmt: skip
        _answer_file(_note_unconfirmed(source_of(dataset, recipe, bundle)()), asked, options)
        return
    if (unused := next((name for name in ("part", "column") if options[name] is not None), None)) is not None:
        raise UsageError(f"--{unused} without files", expected="--input and --output",
                         do=f"give both files, or drop --{unused}")  # fmt: skip
    with importing():
        predictor = _open(_note_unconfirmed(source_of(dataset, recipe, bundle)()))
    questions = list(texts) or _lines()
    if not questions:
        raise UsageError("no text", expected="texts as arguments or lines on the standard input", do="give one")
    answers, cut = asked.of(predictor, questions)
    _note_dial(predictor, tail)
    _note_cut(asked, len(cut))
    _note_answers(questions, answers, asked, predictor.ranker.num_labels)
    unicode = sys.stdout.encoding.lower() == "utf-8"  # another encoding lacks characters, for which JSON has escapes
    for text, labels in zip(questions, answers, strict=True):
        if as_json:
            click.echo(escaped(canonical.line([asdict(label) for label in labels], ascii_only=not unicode)))
            continue
        click.echo(printable(text))
        for label in labels:
            share = "" if label.probability is None else f"{percent(label.probability):>4}  "
            click.echo(printable(f"  {label.score:z7.3f}  {share}{label.title}  [{label.uid}]"))


@dataclass(frozen=True)
class Asked:
    """Which labels of a text are asked for."""

    k: int
    tail: float | None
    min_probability: float

    def of(self, predictor: Predictor, texts: list[str]) -> tuple[list[list[Prediction]], list[int]]:
        """Return the labels of each text, and the places of texts with more labels above the least probability.

        Raises UsageError for what cannot be asked, also without texts.
        """
        from xc_core.infer.predictor import asked_labels, first

        k = asked_labels(self.k, self.min_probability)
        return first(predictor.predict(texts, k, self.tail, self.min_probability), self.k)

    def __str__(self) -> str:
        return f"k {self.k}, tail {self.tail}, min_probability {self.min_probability}"


def _note_unconfirmed(champion: Champion) -> Champion:
    """Note a champion that may have been replaced."""
    if champion.unconfirmed:
        version = f"version {champion.version}, the champion when the registry last answered"
        click.echo(f"note: {champion.unconfirmed}; {version}, is asked", err=True)
    return champion


def _open(champion: Champion) -> Predictor:
    from xc_core.infer.bundle import open_predictor

    with champion.opening() as folder:
        return open_predictor(folder, champion.dataset)


def _note_dial(predictor: Predictor, tail: float | None) -> None:
    """Note that a position of the dial was asked for, but the dial of this model changes nothing."""
    if tail and not predictor.ranker.fusion.turns:
        click.echo(
            "note: --tail has no effect on this model: no weight of rare labels raised PSP@5 on validation documents",
            err=True,
        )


def _note_cut(asked: Asked, texts: int) -> None:
    """Note answers that end at k although more labels are above the least probability."""
    if texts:
        click.echo(
            f"note: more than {counted(asked.k, 'label')} with a probability of {asked.min_probability:g} or more for "
            f"{counted(texts, 'text')}; a larger -k shows them",
            err=True,
        )


def _note_answers(texts: list[str], answers: list[list[Prediction]], asked: Asked, labels: int) -> None:
    """Note texts without words, whose labels tell nothing, and answers that are shorter than asked for."""
    k = asked.k
    if k > labels:
        if click.get_current_context().get_parameter_source("k") is not ParameterSource.DEFAULT:
            click.echo(f"note: the model has {counted(labels, 'label')}, fewer than the {k:,} asked for", err=True)
        k = labels
    if wordless := [number for number, text in enumerate(texts, 1) if not INK.search(text)]:
        click.echo(f"note: {counted(len(wordless), 'text')} without words, the first is text {wordless[0]:,}", err=True)
    if asked.min_probability:
        if none := sum(not answer for answer in answers):
            click.echo(
                f"note: no label with a probability of {asked.min_probability:g} or more for {none:,} of "
                f"{counted(len(texts), 'text')}",
                err=True,
            )
    elif short := [len(answer) for answer in answers if len(answer) < k]:
        click.echo(
            f"note: fewer than {counted(k, 'label')} for {len(short):,} of {counted(len(texts), 'text')}, at least "
            f"{min(short):,}: only labels that a score proposes are ranked",
            err=True,
        )


def _lines() -> list[str]:
    """Return the lines of the standard input, read as UTF-8 in any locale; no more than a limit is read."""
    if sys.stdin.isatty():
        report("texts, one a line; Ctrl-D ends them")
    content = sys.stdin.buffer.read(_MAX_BYTES + 1)
    lines = content.splitlines()
    if len(content) > _MAX_BYTES or len(lines) > _MAX_LINES:
        raise UsageError(
            f"more than {_MAX_BYTES:,} bytes or {_MAX_LINES:,} lines on the standard input",
            expected="fewer texts at once",
            do="put them into a file, which is answered in blocks: --input texts.jsonl --output labels.parquet",
        )
    try:
        return [line.decode("utf-8") for line in lines]
    except UnicodeDecodeError as error:
        number = next(i for i, line in enumerate(lines, 1) if line == error.object)
        raise UsageError(
            f"bytes that are not UTF-8 in line {number} of the standard input",
            expected="one text per line, in UTF-8",
            do="convert them from their encoding, for instance: iconv -f cp1252 -t utf-8",
        ) from error


def _answer_file(champion: Champion, asked: Asked, options: dict[str, Any]) -> None:
    """Answer --input into --output."""
    from xc_core.artifacts import steady
    from xc_core.cli.predict_files import Job, Share
    from xc_core.infer.bundle import Model
    from xc_core.infer.champion import advising
    from xc_core.manifests import read_manifest

    share = None if options["part"] is None else Share.of(options["part"])
    column = "text" if options["column"] is None else options["column"]
    with champion.opening() as folder:
        read_manifest(folder, "model")
    job = Job(options["input"], options["output"], column)  # its errors are not about the model's files

    def open_model() -> tuple[str, Predictor]:
        model = Model.open(folder, champion.dataset)
        return model.digest, model.predictor()

    with advising(champion.repair):
        digest, predictor = steady(folder, open_model)
    job = replace(job, question=f"model {digest}, {asked}")
    asked.of(predictor, [])  # refuses what cannot be asked before anything is read
    _note_dial(predictor, asked.tail)

    empty = cut_texts = 0

    def ask(texts: list[str]) -> list[list[Prediction]]:
        nonlocal empty, cut_texts
        empty += sum(not INK.search(text) for text in texts)
        answers, cut = asked.of(predictor, texts)
        cut_texts += len(cut)
        return answers

    if share:
        rows = job.answer(ask, share)
        click.echo(
            f"{counted(rows, 'row')} answered, {share}; when all parts have ended: the same command without --part"
        )
    else:
        click.echo(f"{counted(job.run(ask), 'row')} answered: {job.target}")
    _note_cut(asked, cut_texts)
    if empty:
        click.echo(f"note: {counted(empty, 'text')} without words, whose labels tell nothing", err=True)
