"""The tool that plants bugs: what it plants, which tests judge, and that what it reports is so."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.mutants import judge as judging
from tests.mutants import mutants as main
from tests.mutants.entered import SECONDS, Entered, Tracer
from tests.mutants.judge import FAILED, PASSED, TOO_LONG, UNDECIDED, Limits, Verdict, changed, copy_tree
from tests.mutants.mutants import EQUIVALENT, ROOT, Known, Tally, difference, equivalents, signature
from tests.mutants.places import ARGUMENT, CALL, Mutant, mutants, sample
from tests.mutants.scopes import SCOPES, Scope, modules, scope_of

PATH = Path("m.py")
SOURCE = textwrap.dedent('''
    """A module."""

    @dataclass(frozen=True)
    class Total:
        pass

    def total(a: int | None = None, *, é: float = 1.5) -> int | None:
        log.info("x")
        check("é", strict=True)
        return dict(é="ü", b=2,
                    c=3)["b"] + 1
''')


def results(operator: str) -> list[str]:
    """Return the lines that each mutant of an operator changes."""
    found = (mutant.applied(SOURCE) for mutant in mutants(PATH, SOURCE) if mutant.operator == operator)
    return [signature(difference(PATH, SOURCE, text)) for text in found if text is not None]


def test_each_keyword_argument_is_left_out_with_its_comma() -> None:
    assert [text.split("\n+")[1] for text in results(ARGUMENT)] == [
        '    check("é", )',
        '    return dict( b=2,',
        '    return dict(é="ü", ',
        '                )["b"] + 1',
    ]  # fmt: skip


def test_calls_are_left_out_except_those_that_only_tell_something() -> None:
    assert results(CALL) == ['-    check("é", strict=True)\n+    pass']


def test_numbers_and_operators_are_changed_and_annotations_are_not() -> None:
    found = mutants(PATH, SOURCE)
    operators = {mutant.operator for mutant in found}
    assert {"core/NumberReplacer", "core/ReplaceBinaryOperator_Add_Sub", "core/ReplaceTrueWithFalse"} <= operators
    assert not any("BitOr_" in operator for operator in operators), "annotations have the only |"
    assert len(results("core/ReplaceTrueWithFalse")) == 1, "the option of a dataclass is left alone"


def test_what_cosmic_ray_cannot_change_is_left_alone() -> None:
    source = "try:\n    pass\nexcept (OSError, sqlite3.Error):\n    pass\n"
    found = [mutant for mutant in mutants(PATH, source) if mutant.operator == "core/ExceptionReplacer"]
    assert [mutant.applied(source) is None for mutant in found] == [False, True]


def test_a_mutant_is_python_and_differs() -> None:
    for mutant in mutants(PATH, SOURCE):
        text = mutant.applied(SOURCE)
        if text is not None:
            assert text != SOURCE
            compile(text, "m.py", "exec")


def test_a_sample_has_one_mutant_of_each_place_and_a_larger_one_begins_with_it() -> None:
    found = mutants(PATH, SOURCE)
    everything = sample(found, 1000, 0)
    assert {mutant.place for mutant in everything} == {mutant.place for mutant in found}
    assert len(everything) == len({mutant.place for mutant in found}) < len(found)
    assert sample(found, 4, 0) == everything[:4] != sample(found, 4, 1)
    assert everything != sorted(everything), "a run that ends early has not seen the first modules only"


def test_every_module_has_a_scope_and_every_scope_its_tests() -> None:
    for package in ("xc_core", "assets", "pipelines"):
        for path in (ROOT / package).rglob("*.py"):
            scope = scope_of(path.relative_to(ROOT))
            assert scope is not None and path.relative_to(ROOT) in modules(ROOT, scope), path
    for scope in SCOPES:
        assert modules(ROOT, scope), f"{scope.name}: an earlier scope takes its modules"
        for test in (*scope.tests, *scope.left_out):
            assert (ROOT / test).exists(), f"{scope.name}: {test}"
    for path in modules(ROOT, SCOPES[-1]):
        test = f"tests/test_{path.stem}.py"
        assert test in SCOPES[-1].tests or not (ROOT / test).exists(), f"{test} does not judge {path}"
    assert scope_of(Path("tests/conftest.py")) is None is scope_of(Path("xc_core/recipes/resolved/a.json"))


def test_a_release_is_judged_by_the_tests_of_each_of_its_modules() -> None:
    """A bug in the command that deletes versions would have survived: its tests did not run."""
    scope = scope_of(Path("assets/release/deleting.py"))
    assert scope is not None and scope.name == "assets/release"
    for path in modules(ROOT, scope):
        for folder in ("tests/assets", "tests/pipelines"):
            test = f"{folder}/test_{path.stem}.py"
            assert test in scope.tests or not (ROOT / test).exists(), f"{test} does not judge {path}"


def test_tests_named_after_the_module_run_first() -> None:
    scope = Scope("xc_core/losses", ("tests/losses",), ("tests/losses/test_bounded_slots.py",))
    first, second = main.runs(scope, Path("xc_core/losses/triplet.py"))
    assert (first[-1], second[-1]) == ("tests/losses/test_triplet.py", "tests/losses")
    assert main.runs(scope) == main.runs(scope, Path("xc_core/losses/nothing.py")) == [second]
    assert {"--ignore=tests/losses/test_bounded_slots.py", "--timeout=0"} <= set(second), "the tool's own limits hold"
    see = ["tests/chain/test_x.py::test_a", "tests/losses/test_triplet.py::test_b"]
    assert [run[-1] for run in main.runs(scope, Path("xc_core/losses/triplet.py"), see)] == see[::-1]
    single = Scope("xc_core", ("tests/test_git.py", "tests/test_locks.py"))
    assert main.runs(single, Path("xc_core/locks.py"))[0][-1] == "tests/test_locks.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with a package ``xc_core`` of one function and its test."""
    root = tmp_path / "tree"
    (root / "xc_core").mkdir(parents=True)
    (root / "xc_core" / "__init__.py").write_text("def twice(a):\n    return a * 2\n")
    (root / "test_it.py").write_text("from xc_core import twice\n\ndef test_it():\n    assert twice(3) == 6\n")
    (root / "pyproject.toml").write_text("")
    return root


ENOUGH = Limits(60, 60, 120)


def judged(tree: Path, limits: Limits = ENOUGH) -> str:
    return judging.judge(tree, ["-q", "-p", "no:cacheprovider", "test_it.py"], limits).outcome


def test_a_copy_is_judged_and_its_file_comes_back(tree: Path) -> None:
    module = tree / "xc_core" / "__init__.py"
    assert judged(tree) == PASSED
    for source in ("def twice(a):\n    return a + 2\n", "import nothing_of_that_name\n"):
        with changed(module, source):
            assert judged(tree) == FAILED
    assert judged(tree) == PASSED


def test_a_copy_that_a_conftest_cannot_import_is_killed_and_tests_that_are_missing_are_an_error(tree: Path) -> None:
    (tree / "conftest.py").write_text("import xc_core\n")
    with changed(tree / "xc_core" / "__init__.py", "import nothing_of_that_name\n"):
        assert judged(tree) == FAILED
    (tree / "test_it.py").unlink()
    with pytest.raises(RuntimeError, match="ran no tests"):
        judged(tree)


def test_temporary_files_of_a_run_go_with_its_copy(tree: Path) -> None:
    """In the common folder pytest deletes those of other runs, which took minutes and counted as time of the tests."""
    (tree / "test_it.py").write_text("def test_it(tmp_path):\n    pass\n")
    assert judged(tree) == PASSED
    assert len(list(tree.parent.glob("pytest-of-*/pytest-0/test_it0"))) == 1


def test_the_first_run_that_fails_is_the_verdict(tree: Path) -> None:
    (tree / "test_bad.py").write_text("def test_bad():\n    assert False\n")
    good, bad = (["-q", "-p", "no:cacheprovider", name] for name in ("test_it.py", "test_bad.py"))
    outcomes = [main.judged(tree, order, ENOUGH).outcome for order in ([good, bad], [bad, good], [good, good])]
    assert outcomes == [FAILED, FAILED, PASSED]


@pytest.mark.parametrize(
    ("body", "limits", "outcome"),
    [
        ("while True:\n        pass", Limits(1, 60, 60), TOO_LONG),
        ("__import__('time').sleep(600)", Limits(60, 1, 60), TOO_LONG),
        ("while not __import__('time').sleep(0.05):\n        pass", Limits(60, 1, 60), TOO_LONG),
        ("lock = __import__('threading').Lock()\n    while lock.acquire():\n        pass", Limits(60, 1, 60), TOO_LONG),
        ("while True:\n        pass", Limits(60, 1, 2), UNDECIDED),
        (
            "import subprocess, sys\n"
            "    busy = 'import time; all(time.process_time() < 4 for _ in iter(int, 1))'\n"
            "    subprocess.run([sys.executable, '-c', busy], start_new_session=True)",
            Limits(60, 1, 2.5),
            UNDECIDED,
        ),
    ],
    ids=["loop", "sleep", "polling", "lock", "starved", "waits for one that is starved"],
)
def test_what_does_not_end_is_too_long_and_what_only_the_clock_ends_is_not_decided(
    tree: Path, body: str, limits: Limits, outcome: str
) -> None:
    """A process that gets no processor looks like the loops here: it asks for one, and has not used its limit."""
    with changed(tree / "xc_core" / "__init__.py", f"def twice(a):\n    {body}\n"):
        assert judged(tree, limits) == outcome


def test_a_mutant_that_is_not_decided_does_not_count_and_is_tried_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("xc_core/__init__.py")
    mutant = next(one for one in mutants(path, (tree / path).read_text()) if "Mul_Add" in one.operator)
    entered = Entered({}, 1.0, 0.0, 1.0)
    known = Known()
    for outcome, counts in ((UNDECIDED, (0, 0, 1)), (FAILED, (1, 1, 0))):
        monkeypatch.setattr(main, "judge", lambda *_, outcome=outcome: Verdict(outcome, 1.0, 0.0, 1.0, ""))
        monkeypatch.setattr(main, "_entered", lambda *_: entered)
        monkeypatch.setattr(main, "KNOWN", tree / "known.json")
        tally = Tally(Scope("xc_core", ("test_it.py",)), places=1)
        main.tried(tree, tally, [mutant], main.Budget(1, float("inf")), known, resume=True)
        assert (tally.tried, tally.killed, tally.undecided) == counts
        assert ("1 not decided" in capsys.readouterr().out) is (outcome == UNDECIDED)


MODULE = """
LIMIT = 3

def twice(a):
    if a > LIMIT:
        raise ValueError(
            a
        )
    return a * 2

def shared():
    return [
        1,
    ]

def never():
    return 1
"""
TESTS = """
import pytest
from xc_core import shared, twice

@pytest.fixture(scope="module")
def made():
    return shared()

def test_small():
    assert twice(2) == 4

def test_large():
    with pytest.raises(ValueError):
        twice(4)

def test_first(made):
    assert made

def test_second(made):
    assert twice(1) == 2 * made[0]
"""


def test_a_mutant_is_judged_by_the_tests_that_enter_its_statement(tree: Path) -> None:
    path = Path("xc_core/__init__.py")
    (tree / path).write_text(MODULE)
    (tree / "test_it.py").write_text(TESTS)
    tracer = Tracer(tree, [path], tree.parent / "entered.json")
    verdict = judging.judge(tree, ["-q", "-p", "no:cacheprovider", "test_it.py"], ENOUGH, tracer)
    assert verdict.outcome == PASSED, verdict.log
    content = json.loads(tracer.out.read_text()) | dict.fromkeys(SECONDS, 1.0)
    found = Entered.read(content)
    lines = MODULE.splitlines()

    def see(text: str) -> list[str] | None:
        tests = found.tests(path, MODULE, lines.index(text) + 1)
        return None if tests is None else [test.removeprefix("test_it.py::test_") for test in tests]

    assert see("    if a > LIMIT:") == ["large", "second", "small"]
    assert see("            a") == see("        raise ValueError(") == ["large"]
    assert see("    return a * 2") == ["second", "small"]
    assert see("        1,") == ["first", "second"], "both use the fixture that enters it"
    assert see("LIMIT = 3") is None, "an import enters it"
    assert see("    return 1") is None, "perhaps another process enters it"
    assert Entered.read(content, ("test_it.py",)).tests(path, MODULE, 9) == ["test_it.py"], "it has changed since"


def test_no_tests_at_all_are_an_error_and_no_score(tree: Path) -> None:
    (tree / "test_it.py").write_text("")
    with pytest.raises(RuntimeError, match="ran no tests"):
        judged(tree)


def test_the_copy_has_new_and_changed_files_and_no_ignored_ones(tmp_path: Path) -> None:
    """It is a repository: a test of ``xc doctor`` lets DVC read it, which failed before any mutant was judged."""
    root = tmp_path / "repository"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    for name, content in ((".gitignore", "*.log\n"), ("new.py", "a\n"), ("x.log", "")):
        (root / name).write_text(content)
    copy_tree(root, tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {".git", ".gitignore", "new.py"}


def test_lines_changed_since_a_reference_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "m.py").write_text("a = 1\nb = 2\nc = 3\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    (tmp_path / "m.py").write_text("a = 1\nb = 5\nc = 3\nd = 4\n")
    monkeypatch.setattr(main, "ROOT", tmp_path)
    assert main.changed_lines("HEAD") == {Path("m.py"): {2, 4}}


def test_equivalent_mutants_name_files_and_lines_that_are_there() -> None:
    """An entry that no longer fits anything would hide nothing, but it would mislead."""
    assert "# Mutants" in EQUIVALENT.read_text("utf-8")
    for (path, change), why in equivalents().items():
        before = "\n".join(line[1:] for line in change.splitlines() if line.startswith("-"))
        assert before in (ROOT / path).read_text("utf-8"), f"{path}: {before}"
        assert why


def test_mutants_are_ordered_by_file_and_line() -> None:
    assert Mutant(PATH, 1, 0, "z", 0) < Mutant(PATH, 2, 0, "a", 0)
