"""The command line as a whole: help, exit codes, unknown commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.conftest import TOY, Xc, entry, offered
from tests.conftest import make_workspace
from xc_core import __version__
from xc_core.chain import Workspace
from xc_core.cli.main import _COMMANDS, cli
from xc_core.errors import MissingError, XCError
from xc_core.root import project_root

COMMANDS = (
    "ingest", "run", "train", "tune", "status", "settings", "evaluate", "predict", "serve", "leaderboard", "compare",
    "ablate", "report", "update", "add-labels", "forget", "drift", "plan", "lineage", "acceptance",
    "delete", "promote", "rollback", "ui", "doctor", "demo",
)  # fmt: skip


class PanicException(BaseException):
    """A panic in the Rust code of a library, as pyo3 raises it."""


def test_help_lists_every_command_once_with_a_sentence(xc: Xc) -> None:
    ended = xc("--help")
    assert ended.code == 0
    listed = re.findall(r"^  ([a-z][a-z-]+)  +([A-Z].+\.)$", ended.out, re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_its_own(xc: Xc, command: str) -> None:
    ended = xc(command, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: xc {command}")
    assert re.search(r"^  [A-Z].+", ended.out, re.MULTILINE), "a sentence that says what it does"


def test_the_exit_codes_of_the_help_are_those_of_the_errors(xc: Xc) -> None:
    text = xc("--help").out.split("Exit codes:")[1]
    listed = sorted(map(int, re.findall(r"\b\d+\b", text)))
    kinds: list[Any] = [XCError, *XCError.__subclasses__()]
    kinds = [kind for kind in kinds if kind.__module__ == "xc_core.errors"]
    assert listed == sorted([0, 2, 129, 130, 143, 141, *(kind.exit_code for kind in kinds)])


@pytest.mark.parametrize("kind", [XCError, *XCError.__subclasses__()])
def test_an_error_of_any_kind_ends_with_its_code(xc: Xc, kind: type[XCError], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise kind("a", expected="b", do="c", where="here")

    monkeypatch.setattr(Workspace, "find", classmethod(lambda cls: fail()))
    xc("leaderboard", *TOY).refused(kind.exit_code, "here: found a", "c")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RuntimeError("odd"), 70, "RuntimeError: odd\n  a fault of xc; `xc --debug ...` shows where; please report it"),
        (OSError(28, "No space left on device"), 73, "found a full disk"),
        (MemoryError(), 71, "found too little memory (MemoryError)\n  expected: memory for"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PanicException("thread: Resource temporarily unavailable"), 71, "found a limit of the system"),
        (PanicException('Os { code: 24, message: "Too many open files" }'), 71, "found a limit of the system"),
        (OSError(12, "Cannot allocate memory"), 71, "found too little memory ([Errno 12] Cannot allocate memory)"),
        (PermissionError(13, "Permission denied", "/absent/a"), 73, "fix the permission (/ belongs to "),
        (PermissionError(1, "Operation not permitted", 3), 73, "fix the permission or the link"),
        (PanicException("odd"), 70, "PanicException: odd\n  a fault of xc"),
    ],
)
def test_what_nobody_gave_words_to_has_a_code_too(
    xc: Xc, error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(Workspace, "find", classmethod(lambda cls: fail()))
    ended = xc("leaderboard", *TOY)
    assert ended.code == code
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_current_folder_that_was_deleted_is_named(
    xc: Xc, tmp_path: Path, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With XC_ROOT commands began, and ended with code 2 as soon as torch multiplied, or called it a fault of xc."""

    def deleted_meanwhile(_: Workspace) -> str:
        (tmp_path / "gone").rmdir()
        return (tmp_path / "absent").read_text()

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "params", property(deleted_meanwhile))
        assert xc("status").code == 70, "an unexpected error of the system, which is no full disk"
    expected = (66, "a current folder that was deleted", "change into the project's folder")
    xc("status").refused(*expected)
    xc("ingest", "folder", "--dataset", "other").refused(*expected)
    monkeypatch.delenv("XC_ROOT")
    with pytest.raises(MissingError, match="a current folder that was deleted"):
        project_root()
    assert project_root(fresh.root) == fresh.root, "another folder is there"
    assert xc("--help").code == 0


@pytest.mark.parametrize("late", [False, True])
def test_a_current_folder_that_is_deleted_after_the_start_is_named(
    tmp_path: Path, starting: None, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Before torch is imported, that ended the process with 2. After it, a file without a name was not found (70)."""
    make_workspace(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    script = """if True:
        import os, sys
        from xc_core.chain import runner
        from xc_core.cli import main

        code, check = runner.code, main.check_current_folder
        def late(stage, function):
            found = code(stage, function)
            os.rmdir(os.getcwd())
            return found
        def early():
            check()
            os.rmdir(os.getcwd())
        if "LATE":
            runner.code = late
        else:
            main.check_current_folder = early
        main.main(["train", "--dataset", "toy", "--recipe", "ngame"])
        """
    program = script.replace("LATE", "late" if late else "")
    environment = {**os.environ, "XC_ROOT": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 66, done.stderr
    assert "xc: found a current folder that was deleted\n" in done.stderr
    assert "do this:  change into the project's folder" in done.stderr


def test_debug_shows_the_traceback_and_then_the_message(xc: Xc, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("odd")

    monkeypatch.setenv("XC_DEBUG", "")  # what the command sets is gone after the test
    monkeypatch.setattr(Workspace, "find", classmethod(lambda cls: fail()))
    ended = xc("--debug", "leaderboard", *TOY)
    assert ended.code == 70
    assert 0 <= ended.err.find("Traceback (most recent call last)") < ended.err.find("xc: RuntimeError: odd\n  a fault")
    assert re.search(r'^  File ".+", line \d+, in fail$', ended.err, re.MULTILINE)


def test_help_has_a_short_name_and_uses_a_wide_terminal_and_the_version_is_printed(
    xc: Xc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for command in ((), ("train",)):
        assert xc(*command, "-h") == xc(*command, "--help")
    assert 100 < max(map(len, xc("train", "--help").out.splitlines())) < 120
    assert (xc("--version").code, xc("--version").out) == (0, f"xc, version {__version__}\n")


QUICK = (
    *(
        f"xc_core.cli.{name}"
        for name in ("train", "tune", "run", "status", "compare", "doctor", "ingest", "predict", "serve")
    ),
    "assets.release.promotion",
    "assets.release.champions",
    "assets.release.health",
    "assets.worker",  # the process of a stage
    "pipelines.servers",
)
"""Modules that are imported before it is known whether a command needs slow libraries."""


@cache
def slow_libraries() -> dict[str, list[str]]:
    """Return, by module of QUICK, the slow libraries that it imports; one that an earlier module imports is not named.

    One process imports all of them in turn: Python and what they share take a second.
    """
    slow = ("torch", "faiss", "mlflow", "sklearn", "dagster")
    code = f"""
import json, sys
from importlib import import_module
found, before = {{}}, set()
for module in {QUICK}:
    import_module(module)
    imported = set({slow}) & set(sys.modules)
    found[module] = sorted(imported - before)
    before = imported
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("module", QUICK)
def test_help_wrong_names_and_stages_do_not_wait_for_libraries_they_may_not_need(module: str) -> None:
    assert slow_libraries()[module] == []


def test_an_unknown_dataset_is_refused_before_slow_libraries_are_imported(fresh: Workspace) -> None:
    commands = (
        "run encoder --recipe ngame", "plan", "train", "tune --recipe ngame --space none", "evaluate", "status",
        "settings", "drift", "compare a b", "report", "predict text", "serve", "promote --recipe ngame", "demo",
    )  # fmt: skip
    code = f"""
import sys
from xc_core.cli.main import main
for command in {commands}:
    try:
        main([*command.split(), "--dataset", "nope"])
    except SystemExit as ended:
        print(command, ended.code, [name for name in ("torch", "dagster", "mlflow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "XC_ROOT": str(fresh.root)},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stdout.splitlines() == [f"{command} 66 []" for command in commands]


def test_a_command_does_not_search_the_libraries_for_garbage_when_it_ends() -> None:
    code = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 10_000))\n"
        "from xc_core.cli.main import main; main(['--version'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    ("wrong", "near"), [("trian", "train"), ("predit", "predict"), ("leaderbord", "leaderboard"), ("Doctor", "doctor")]
)
def test_an_unknown_command_names_the_nearest(xc: Xc, wrong: str, near: str) -> None:
    ended = xc(wrong)
    assert ended.code == 2
    assert f"no command {wrong!r} (nearest: {near!r})" in ended.err


def test_commands_of_other_packages_join_the_one_table(xc: Xc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without such packages the library's own commands are all there is."""
    offered(monkeypatch, "xc.commands")
    listed = re.findall(r"^  ([a-z][a-z-]+)  +[A-Z].+\.$", xc("--help").out, re.MULTILINE)
    assert set(COMMANDS) - set(listed) == {"delete", "promote", "rollback", "lineage", "acceptance", "ui", "demo"}


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    own = {name: cli.get_command(click.Context(cli), name) for listed in _COMMANDS.values() for name in listed}
    said = {name: command.get_short_help_str(90) for name, command in own.items() if command is not None}
    assert said == {name: text for listed in _COMMANDS.values() for name, (_, text) in listed.items()}


def test_the_list_of_commands_imports_none() -> None:
    code = "import sys; from xc_core.cli.main import cli; cli(['--help'], standalone_mode=False); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", "polars", "torch", "dagster"}.isdisjoint(ended.stdout.split())


def test_help_lists_the_commands_of_other_packages(xc: Xc, monkeypatch: pytest.MonkeyPatch) -> None:
    command = click.Command("labels", short_help="Print the labels.")
    offered(monkeypatch, "xc.commands", entry("labels", command))
    assert re.search(r"^Other:\n  labels  Print the labels\.$", xc("--help").out, re.MULTILINE)
    shown = re.findall(r"^  ([a-z][a-z-]*)  +[A-Z]", xc("--help").out, re.MULTILINE)
    assert cli.list_commands(click.Context(cli)) == shown, "the completion has the order of the help"


def test_a_closed_pipe_ends_with_the_code_of_the_signal(own: Workspace) -> None:
    command = [sys.executable, "-m", "xc_core.cli.main", "settings", *TOY, "--recipe", "ngame"]
    process = subprocess.Popen(
        command, env={**os.environ, "XC_ROOT": str(own.root)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(), said) == (141, "")
    process.stderr.close()


def test_a_wrong_experiment_does_not_hide_the_status_of_the_others(xc: Xc, own: Workspace) -> None:
    params = own.root / "params.yaml"
    text = params.read_text()
    at = text.index("  toy_ngame:")
    block = text[at:]
    wrong = (
        block.replace("toy_ngame", "toy_wrong").replace("recipe: ngame", "recipe: wrong").replace("epochs:", "epoch:")
    )
    params.write_text(text[:at] + wrong + block)
    ended = xc("status", "--json")
    assert ended.code == 0
    assert "wrong.encoder.epoch (nearest: 'epochs')" in ended.err
    assert {json.loads(line)["recipe"] for line in ended.out.splitlines()} >= {"ngame"}
    assert xc("status").code == 78
