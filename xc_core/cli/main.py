"""The command ``xc``: finds a subcommand, runs it, turns errors into a message and an exit code."""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, Final

import click

from xc_core import __version__
from xc_core.causes import explanation, is_panic
from xc_core.cli.numbers import bound_numbers
from xc_core.errors import XCError, nearest
from xc_core.installation import outdated
from xc_core.plugins import COMMANDS, fault_of, importing
from xc_core.progress import listen, report
from xc_core.root import check_current_folder
from xc_core.visible import printable

_COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Data": {
        "ingest": ("ingest:ingest", "Check a folder of text and make it a dataset."),
        "update": ("update:command", "Merge new documents, labels and corrected pairs into a dataset."),
        "add-labels": ("add_labels:command", "Add labels to a dataset and its models, without training."),
        "forget": ("forget:command", "Delete documents or labels, and everything made from them."),
        "delete": ("", "Delete experiments, a dataset, or registered versions."),
    },
    "Training": {
        "plan": ("plan:plan", "Estimate time, memory and disk of every stage."),
        "train": ("train:train", "Run the whole pipeline for one recipe, or all."),
        "tune": ("tune:tune", "Search the settings of a recipe on validation documents."),
        "run": ("run:run", "Run one stage of the pipeline."),
        "status": ("status:status", "Show which artefacts are up to date, and why others are not."),
        "drift": ("drift:command", "Check whether new data require a refresh or a retraining."),
        "settings": ("status:settings", "Show all settings of a dataset or experiment."),
        "evaluate": ("run:evaluate", "Evaluate a trained recipe on test documents."),
        "leaderboard": ("run:leaderboard", "Compare all evaluated recipes of a dataset."),
        "compare": ("compare:compare", "Show how certain it is that one recipe beats another."),
        "ablate": ("ablate:ablate", "Show what each score adds to the fusion of a recipe."),
        "report": ("report:report_on", "Write an HTML page on an evaluated model."),
    },
    "Serving": {
        "predict": ("predict:predict", "Ask the model for the labels of a text."),
        "serve": ("serve:command", "Serve the champion over HTTP."),
        "promote": ("", "Make a model the champion, the version that is served."),
        "rollback": ("", "Return to the previous champion."),
        "lineage": ("", "Show the data, code and settings of a version."),
        "acceptance": ("", "Show or draw the documents of the gate."),
    },
    "Project": {
        "demo": ("", "Run the whole pipeline on the bundled dataset."),
        "ui": ("", "Open the Dagster UI and the MLflow UI."),
        "doctor": ("doctor:doctor", "Check machine, environment and project."),
    },
}
"""The commands under their headings: module and function in this package, none for those of other packages; the first
line of the help, so that ``xc --help`` imports no command."""
_EXIT_CODES: Final = """Exit codes: 0 done; 2, 64 wrong command; 65 wrong data; 66 something is missing; 69 a service
does not answer; 70 a fault of this software; 71 too little memory; 72 the training diverged;
73 disk full or not writable; 74 a corrupt artefact; 75 busy; 76 inputs out of date or changed; 77 a gate refused;
78 wrong parameter; 129, 130, 143 stopped by a signal (hang-up, Ctrl-C, SIGTERM); 141 the output was closed."""

_BROKEN_PIPE: Final = 141
"""128 + SIGPIPE, the code that a shell reports for a program that wrote to a closed pipe."""
_STOPS: Final = {signal.SIGHUP: "hung up", signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
"""Signals that ask a process to end, and what is said then."""


class _FolderOfTorch(MetaPathFinder):
    """Looks whether the current folder is there before torch is imported, which would end the process without it."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise MissingError if ``fullname`` is torch and the folder was deleted; leave the import to others."""
        if fullname == "torch":
            check_current_folder()


class Commands(click.Group):
    """Subcommands by name, imported only when called; other packages add theirs by the entry points ``xc.commands``."""

    def _loaders(self) -> dict[str, Callable[[], Any]]:
        listed = [command for commands in _COMMANDS.values() for command in commands.items()]
        loaders: dict[str, Callable[[], Any]] = {name: partial(_load, target) for name, (target, _) in listed if target}
        return loaders | {entry.name: entry.load for entry in metadata.entry_points(group=COMMANDS)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of the help."""
        ordered = [name for commands in _COMMANDS.values() for name in commands]
        return sorted(self._loaders(), key=lambda name: ordered.index(name) if name in ordered else len(ordered))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; raise UsageError, naming the nearest, if there is none."""
        loaders = self._loaders()
        if cmd_name not in loaders:
            raise click.UsageError(f"no command {cmd_name!r}{nearest(cmd_name, loaders)}")
        with importing():
            return bound_numbers(loaders[cmd_name]())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end with exit code 141 if the reader of the output closes it, as ``head`` does."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # before click, which would end with code 1
            _drop_unwritten()
            raise click.exceptions.Exit(_BROKEN_PIPE) from None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under headings; import only those of other packages."""
        loaders = self._loaders()
        sections = {
            heading: [(name, text) for name, (_, text) in commands.items() if name in loaders]
            for heading, commands in _COMMANDS.items()
        }
        listed = {name for rows in sections.values() for name, _ in rows}
        sections["Other"] = [(name, self._short_help(ctx, name)) for name in sorted(loaders.keys() - listed)]
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return command.get_short_help_str(90) if command is not None else ""


def _load(target: str) -> Any:
    module, name = target.split(":")
    return getattr(importlib.import_module(f"xc_core.cli.{module}"), name)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="\b\n" + _EXIT_CODES,
)
@click.version_option(__version__, prog_name="xc")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Extreme classification: from a folder of text to a model that answers with the right labels.

    \b
    xc ingest FOLDER --dataset NAME             check a folder of text and make it a dataset
    xc train --dataset NAME --recipe words      run the whole pipeline
    xc predict --dataset NAME "some text"       ask the model
    """
    if debug:
        os.environ["XC_DEBUG"] = "1"
    check_current_folder()
    if (error := outdated()) is not None and click.get_current_context().invoked_subcommand != "doctor":
        report(f"note: {error}")


class StoppedError(KeyboardInterrupt):
    """Raised at the place where a signal asked this process to end; what is open is cleaned up as after Ctrl-C."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        self.number = signal.Signals(number)
        super().__init__(self.number.name)


def main(arguments: list[str] | None = None) -> None:
    """Run ``xc`` and exit with its code."""
    atexit.register(gc.freeze)  # the interpreter need not search the libraries' objects for garbage when it ends
    _open_standard_files()
    listen(_print)
    with _stoppable(), _checked_imports():
        code = _run_command(arguments)
    _drop_unwritten()
    sys.exit(code)


def _open_standard_files() -> None:
    """Open the null device in place of each standard file that is closed, as after ``>&-``.

    Else the next file that is opened gets its number, and what a library prints is written into that file. A character
    that the encoding of the output lacks, as that of a Latin-1 locale does, is printed as an escape.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_unwritten() -> None:
    """Drop what a full disk or a closed pipe did not take: Python would try again at its end, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):  # it is no file
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print(line: str) -> None:
    """Print a line of progress, or an error; a full disk or a terminal that is gone does not end the work."""
    try:
        click.echo(printable(line), err=True)
    except BrokenPipeError:
        raise
    except OSError:
        pass


def _run_command(arguments: list[str] | None) -> int:
    """Run ``xc`` and return its exit code; every error is reported."""
    try:
        return cli.main(args=arguments, prog_name="xc", standalone_mode=False) or 0  # Exit is returned, not raised
    except click.Abort as abort:  # click's word for an interrupt
        return _report_stop(abort.__cause__)
    except KeyboardInterrupt as stop:
        return _report_stop(stop)
    except click.ClickException as error:
        with suppress(OSError):  # as in _report_error
            error.show()
        return error.exit_code
    except XCError as error:
        return _report_error(str(error), error.exit_code)
    except Exception as error:
        return _report_unexpected(error)
    except BaseException as error:
        if not is_panic(error):
            raise
        return _report_unexpected(error)


@contextmanager
def _checked_imports() -> Iterator[None]:
    """Raise MissingError in the block if torch is to be imported and the current folder was deleted since the start."""
    finder = _FolderOfTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let the signals that ask a process to end raise StoppedError; one that is ignored, as under nohup, stays so."""

    def stop(number: int, _: object) -> None:
        raise StoppedError(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in _STOPS}
    try:
        for number in _STOPS:
            if previous[number] is not signal.SIG_IGN:
                signal.signal(number, stop)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _report_stop(stop: BaseException | None) -> int:
    """Report the signal that ended the command; return 128 + its number, as a shell does."""
    number = stop.number if isinstance(stop, StoppedError) else signal.SIGINT
    return _report_error(_STOPS[number], 128 + number)


def _report_unexpected(error: BaseException) -> int:
    """Report an error without a message of its own, of the disk or a fault of software; return the exit code."""
    if (explained := explanation(error)) is not None:
        return _report_error(str(explained), explained.exit_code)
    if (outdated_error := outdated()) is not None:
        hint = "the installation is of another version of this code, see the note above"
        return _report_error(f"{type(error).__name__}: {error}\n  {hint}", outdated_error.exit_code)
    return _report_error(f"{type(error).__name__}: {error}\n  {fault_of(error)}", XCError.exit_code)


def _report_error(message: str, code: int) -> int:
    if os.environ.get("XC_DEBUG"):
        import traceback

        traceback.print_exc()
    with suppress(OSError):  # nobody can be told; the exit code is right
        report(f"xc: {message}")  # not only on a terminal: a Dagster worker forwards it to the event log
    return code


if __name__ == "__main__":
    main()
