"""A stage does not read an artefact that is out of date: it is refused, and the message names what to run first."""

from __future__ import annotations

import pytest

from tests.chain.toy import (
    NAMES,
    STAGES_OF,
    Edit,
    folder_of,
    reads,
    set_older,
)
from tests.conftest import TOY_CHANGES
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.cli.main import main
from xc_core.errors import MissingError, MovedError

PAIRS = [(stage.name, dep) for stage in STAGES.values() for dep in reads(stage) if stage.name != "leaderboard"]


def xc(*arguments: str) -> int:
    """Return the exit code of the command ``xc``."""
    with pytest.raises(SystemExit) as caught:
        main([*arguments])
    return int(caught.value.code or 0)


# refused by name


@pytest.mark.parametrize(("name", "dep"), PAIRS)
def test_a_stale_input_is_refused_by_name_and_nothing_is_lost(name: str, dep: str, copied: Workspace) -> None:
    part = "code" if dep == "corpus" else STAGES[dep].deps[0]
    set_older(folder_of(copied, dep), part)
    kept = artifacts.verify(folder_of(copied, name))
    with pytest.raises(MovedError) as caught:
        run_stage(copied, name, "toy", "ngame", force=True)
    error = caught.value
    assert error.found == f"{dep} out of date: {part} changed since it was made"
    assert (error.expected, error.exit_code) == (f"inputs of {name} that are up to date", 76)
    flags = "--dataset toy" + (" --recipe ngame" if STAGES[dep].scope == "experiment" else "")
    if STAGES[name].scope == "dataset":
        assert error.do == f"xc run {dep} {flags}, then the same command"
    else:
        whole = copied.params.train_command("toy", "ngame")
        assert "--set classifier.epochs=" in whole
        assert error.do.startswith(f"{whole}, or stage by stage from xc run {dep} {flags}")
    assert error.do.endswith("; or add --refresh to keep the trained encoder") == (dep == "encoder")
    assert artifacts.verify(folder_of(copied, name)) == kept


def test_the_stage_named_is_the_first_that_is_out_of_date(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{STAGES_OF}/clusters/size": 5})
    for name in ("classifier", "scores", "fusion", "evaluation", "model", "audit"):
        with pytest.raises(MovedError, match=r"found clusters out of date: settings \(size\) changed since it was"):
            run_stage(copied, name, "toy", "ngame")
    assert not run_stage(copied, "clusters", "toy", "ngame").skipped
    with pytest.raises(MovedError, match="found classifier out of date: clusters changed since it was made"):
        run_stage(copied, "scores", "toy", "ngame")


def test_a_stage_whose_inputs_are_up_to_date_runs_though_others_are_stale(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{STAGES_OF}/clusters/size": 5})
    for name in ("corpus", "encoder", "embeddings", "negatives"):
        assert run_stage(copied, name, "toy", "ngame").skipped


def test_an_input_without_a_record_of_how_it_was_made_is_refused(copied: Workspace) -> None:
    (folder_of(copied, "embeddings") / artifacts.MADE).unlink()
    with pytest.raises(MovedError, match="found embeddings out of date"):
        run_stage(copied, "clusters", "toy", "ngame")


def test_the_leaderboard_leaves_out_a_stale_evaluation_and_says_so(
    copied: Workspace, edit: Edit, lines: list[str]
) -> None:
    edit(copied, {f"{STAGES_OF}/fusion/rows": 3})
    with pytest.raises(MissingError, match="no evaluated recipe of toy") as caught:
        run_stage(copied, "leaderboard", "toy", force=True)
    assert caught.value.do == copied.params.train_command("toy", "ngame")
    why = "evaluation of ngame out of date: fusion is out of date"
    assert f"leaderboard: ngame is left out: {why}; do this: {caught.value.do}" in lines


# the command line


@pytest.fixture
def small(copied: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The trained workspace with a second name for its experiment, a variant that `xc train` trains as it is."""
    copied.params.declare_experiment("toy", "small", "ngame", TOY_CHANGES)
    folder_of(copied, "encoder").parent.rename(copied.folder("encoder", "toy", "small").parent)
    monkeypatch.setenv("XC_ROOT", str(copied.root))
    return copied


def test_xc_run_refuses_with_exit_code_76_and_xc_train_remakes_what_is_stale(
    small: Workspace, edit: Edit, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    arguments = ("--dataset", "toy", "--recipe", "small")
    assert xc("status", *arguments) == 0
    edit(small, {"experiments/toy_small/stages/clusters/size": 5})
    assert xc("run", "classifier", *arguments) == 76
    assert "found clusters out of date: settings (size) changed since it was made" in capsys.readouterr().err
    assert xc("status", *arguments) == 1
    shown = capsys.readouterr().out
    assert "  clusters    out of date: settings (size) changed\n" in shown
    assert "  model       out of date: scores is out of date\n" in shown
    assert xc("train", *arguments) == 0
    said = capsys.readouterr().err
    assert "encoder: up to date\n" in said and "classifier: up to date\n" not in said
    assert xc("status", *arguments) == 0


def test_the_leaderboard_is_made_again_when_an_evaluation_becomes_stale_and_when_it_is_not_any_more(
    copied: Workspace, edit: Edit
) -> None:
    """The evaluation itself is the same all the time."""
    copied.params.declare_experiment("toy", "other", "ngame", TOY_CHANGES)
    for name in NAMES:
        run_stage(copied, name, "toy", "other")

    def recipes() -> tuple[bool, int]:
        ran = run_stage(copied, "leaderboard", "toy")
        return ran.skipped, len((ran.folder / "leaderboard.md").read_text().splitlines())

    rebuilt, both = recipes()
    assert (rebuilt, recipes()) == (False, (True, both))
    params = (copied.root / "params.yaml").read_bytes()
    edit(copied, {"experiments/toy_other/stages/classifier/seed": 7})
    skipped, one = recipes()
    assert not skipped and one < both
    (copied.root / "params.yaml").write_bytes(params)
    assert recipes() == (False, both)
    edit(copied, {"experiments/toy_other/stages/classifier/epochs": -1})
    assert recipes() == (False, one), "a wrong setting of one recipe leaves out that one"
