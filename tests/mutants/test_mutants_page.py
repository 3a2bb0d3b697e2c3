"""Which packages and modules the tool that plants bugs takes, and the rows that it writes into docs/tests.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import pages
from tests.mutants import mutants as main
from tests.mutants.mutants import Tally
from tests.mutants.places import Mutant
from tests.mutants.scopes import Scope


def test_a_page_keeps_the_rows_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "tests.md"
    page.write_text("# Tests\n\n<!-- mutants: begin -->\n| `a` | 1 |\n| `b` | 1 |\n<!-- mutants: end -->\n\nThe end.\n")
    monkeypatch.setattr(main, "PAGE", page)
    main.write([Tally(Scope("b", ()), places=1000, killed=18, equivalent=1, survived=["x"])])
    text = page.read_text()
    rows = pages.between(text, "mutants").splitlines()
    assert rows[2] == "| `a` | 1 |" and rows[3].startswith("| `b` | 1,000 | 20 | 18 | 1 | 1 | 95% | 20")
    assert text.startswith("# Tests\n") and text.endswith("\n\nThe end.\n")


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no markers <!-- mutants: begin -->"):
        pages.filled("# Tests\n", "mutants", "x")


@pytest.mark.parametrize(("package", "imported"), [("xc_core/tune", False), ("assets/release/origin.py", True)])
def test_dagster_and_mlflow_are_imported_once_for_the_packages_that_need_them(
    monkeypatch: pytest.MonkeyPatch, package: str, imported: bool
) -> None:
    """Their import takes longer than most tests of a release."""
    names: list[str] = []
    monkeypatch.setattr(main, "copy_tree", lambda *_: None)
    monkeypatch.setattr(main, "preload", names.extend)
    monkeypatch.setattr(main, "write", lambda _: None)
    monkeypatch.setattr(main, "tried", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["mutants", package, "--size", "1"])
    main.main()
    assert "torch" in names and ({"dagster", "mlflow"} <= set(names)) is imported


def test_an_unknown_package_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("xc_core/loses", "xc_core/losses/none.py", "tests/conftest.py"):
        monkeypatch.setattr(sys, "argv", ["mutants", name])
        with pytest.raises(SystemExit):
            main.main()
        assert f"found package {name}; expected a module, or some of assets/release" in capsys.readouterr().err


def test_a_module_alone_is_sampled_and_writes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new module of a large package would need a large sample of all of it."""
    sampled: list[Mutant] = []
    written: list[str] = []
    monkeypatch.setattr(main, "copy_tree", lambda *_: None)
    monkeypatch.setattr(main, "preload", lambda names: None)
    monkeypatch.setattr(main, "write", lambda tallies: written.extend(tally.scope.name for tally in tallies))

    def tried(tree: Path, tally: Tally, chosen: list[Mutant], *_: object) -> None:
        sampled.extend(chosen)
        tally.killed += len(chosen)

    monkeypatch.setattr(main, "tried", tried)
    for packages, expected in ((["xc_core/losses/bce.py"], []), (["xc_core/losses/bce.py", "xc_core/tune"], ["tune"])):
        sampled.clear()
        monkeypatch.setattr(sys, "argv", ["mutants", *packages, "--size", "500"])
        assert main.main() == 0
        assert {mutant.path for mutant in sampled if mutant.path.parent.name == "losses"} == {Path(packages[0])}
        assert [Path(name).name for name in written] == expected
    assert {mutant.path.parent.name for mutant in sampled} == {"losses", "tune"}
