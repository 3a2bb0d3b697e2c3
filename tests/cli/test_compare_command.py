"""``xc compare``: paired differences of recipes and scores."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import NGAME, TOY, TOY_SETTINGS, Xc
from tests.conftest import TOY_CHANGES, ToyWorld
from tests.plugins.conftest import ROOT
from xc_core import artifacts
from xc_core.artifacts import Made
from xc_core.chain import Workspace, run_stage
from xc_core.metrics import paired
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.names import RECALL, titled
from xc_core.metrics.paired import PairedDifference
from xc_core.metrics.ranking import PerDocument
from xc_core.metrics.stored import StoredFigures
from xc_core.params import deep_merged

VALIDATION = (*TOY, "--on", "validation")


def test_compare_prints_paired_differences_of_recipes_and_scores(xc: Xc, ready: Workspace) -> None:
    other = xc("compare", *TOY, "ngame", "ngame:label_text").out.splitlines()
    assert other[0] == "toy: ngame minus ngame:label_text, 40 test documents, points of percent"
    assert [line.split()[0] for line in other[1:]] == [
        "P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "recall@5", "head",
        "torso", "tail",
    ]  # fmt: skip
    xc("compare", *TOY, "ngame", "ngame:classifer").refused(64, "nearest: 'classifier'", "fix the name")
    xc("compare", *TOY, "ngame", "npr").refused(
        66, "no evaluation of 'npr' on toy", "fix the name, or train it: xc train"
    )
    xc("compare", "--dataset", "tay", "ngame", "ngame").refused(66, "no dataset 'tay' in params.yaml (nearest: 'toy')")


@pytest.mark.parametrize("on", ["test", "validation"])
@pytest.mark.parametrize("names", [("ngame", "ngame"), ("ngame:classifier",) * 2, ("ngame", "ngame:fusion")])
def test_compare_refuses_a_model_with_itself(xc: Xc, ready: Workspace, on: str, names: tuple[str, str]) -> None:
    """It was a table of zeros, with the interval of documents that do not differ."""
    xc("compare", *TOY, "--on", on, *names).refused(
        64, f"{names[0]} and {names[1]}, which are the same", "name another"
    )


def test_predictions_of_another_program_are_measured_as_the_page_says(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/add-a-method.md."""
    page = (ROOT / "docs" / "add-a-method.md").read_text("utf-8")
    section = page.partition("## Predictions of another program")[2]
    code = re.search(r"^```python\n(.*?)^```", section, re.S | re.M)
    assert code is not None
    monkeypatch.chdir(ready.root)
    found: dict[str, Any] = {}
    exec(code[1].replace('"mine"', '"toy"').replace('"quick"', '"ngame"'), found)
    frequent = found["corpus"].published_train().frequency_L().argmax()
    share = found["corpus"].labels.rows(found["test"]).frequency_L()[frequent] / len(found["test"])
    assert found["found"]["metrics"]["P_at_1"] == pytest.approx(100 * share)
    assert len(found["texts"]) == len(found["train"]) and len(found["questions"]) == len(found["test"])


def test_json_has_the_figures_of_the_table_and_those_of_the_report(xc: Xc, ready: Workspace) -> None:
    for on in ("test", "validation"):
        asked = ("compare", *TOY, "--on", on, "ngame", "ngame:label_text")
        found, shown = json.loads(xc(*asked, "--json").out), xc(*asked).out.splitlines()
        head = f"{found['documents']} {found['on']} documents"
        assert shown[0] == f"{found['dataset']}: {found['ours']} minus {found['theirs']}, {head}, points of percent"
        lines = {line.split()[0]: line for line in shown[1:]}
        for name, row in found["metrics"].items():
            line = lines[name.removesuffix("_recall_at_5") if name in RECALL.values() else titled(name)]
            if row["points"] is None:
                left = " without labels that reveal held-out documents" if on == "validation" else ""
                assert line.split(maxsplit=2)[1:] == ["-", f"0 pairs{left}"]
                continue
            assert float(line.split()[1]) == pytest.approx(row["points"], abs=0.006)
            assert ("not clear" in line) is not row["clear"]
            assert ("pairs" in row) is (f"{row.get('pairs')} pairs" in line) is (name in RECALL.values())
        assert len(lines) == len(found["metrics"]) + 1, "the title of the last lines"


def test_the_parts_are_those_of_the_report(xc: Xc, ready: Workspace) -> None:
    found = json.loads(xc("compare", *TOY, "--json", "ngame", "ngame:label_text").out)["metrics"]
    bins, figures = Evaluation.open(ready.folder("evaluation", "toy", "ngame")).report["bins"], {}
    for score in ("fusion", "label_text"):
        own = Evaluation.open(ready.folder("evaluation", "toy", "ngame")).figures(score)
        assert own is not None
        figures[score] = own.total()
    for name, metric in RECALL.items():
        row, own = found[metric], bins[name]
        assert row["pairs"] == own["positives"]
        if not row["pairs"]:
            assert row["points"] is own["recall_at_5"] is None
            continue
        assert figures["fusion"][metric] == pytest.approx(own["recall_at_5"])
        assert row["points"] == pytest.approx(figures["fusion"][metric] - figures["label_text"][metric])


def test_no_difference_has_a_minus_before_zero(xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"R_at_10": PairedDifference(-0.001, -0.0049, 0.3)}
    monkeypatch.setattr("xc_core.metrics.paired.differences", lambda *_: tiny)
    assert "R@10       +0.00   [+0.00, +0.30]   not clear" in xc("compare", *TOY, "ngame", "ngame:classifier").out


@pytest.mark.parametrize(
    ("low", "differing", "verdict"),
    [(0.2, 6, ""), (0.2, 5, "   not clear: only 5 documents differ"), (0.2, 1, "   not clear: only 1 document differs"),
     (-0.2, 5, "   not clear"), (-0.2, 6, "   not clear")],
)  # fmt: skip
def test_a_difference_of_few_documents_is_said_to_be_one(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch, low: float, differing: int, verdict: str
) -> None:
    """An interval above 0 was called not clear without a reason."""
    row = {"P_at_3": PairedDifference(1.39, low, 2.78, differing)}
    monkeypatch.setattr("xc_core.metrics.paired.differences", lambda *_: row)
    line = f"P@3        +1.39   [{low:+.2f}, +2.78]{verdict}"
    assert line in xc("compare", *TOY, "ngame", "ngame:classifier").out.splitlines()


def test_compare_refuses_figures_of_documents_that_were_replaced(xc: Xc, own: Workspace) -> None:
    ToyWorld.make(documents=200).write(own.raw("toy"))
    run_stage(own, "corpus", "toy")
    xc("compare", *TOY, "ngame", "ngame:classifier").refused(76, "on another corpus", "xc train --dataset toy")


def around(points: float) -> PairedDifference:
    return PairedDifference(points, points - 1, points + 1)


def test_figures_of_older_settings_are_noted(xc: Xc, own: Workspace) -> None:
    assert xc("compare", *TOY, "ngame", "ngame:classifier").err == ""
    other = [*TOY_SETTINGS, "--set", "fusion.rule.depth=2"]
    assert xc("train", *NGAME, *other, "--until", "fusion").code == 0
    evaluate = "xc run evaluation --dataset toy --recipe ngame"
    note = f"note: the stage evaluation of ngame is out of date (fusion changed). Make it again: {evaluate}\n"
    assert xc("compare", *TOY, "ngame", "ngame:classifier").err == note, "once"
    assert xc("report", *NGAME).err == note
    assert xc("compare", *VALIDATION, "ngame", "ngame:classifier").err == "", "the fusion is up to date"
    assert xc(*evaluate.split()[1:]).code == 0
    assert xc("compare", *TOY, "ngame", "ngame:classifier").err == ""


def one_metric(documents: int) -> PerDocument:
    return PerDocument({"P_at_1": np.ones(documents)}, {"P_at_1": np.ones(documents)})


def test_a_figure_above_zero_means_that_the_first_is_better(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"better": one_metric(60), "worse": one_metric(50)}
    monkeypatch.setattr("xc_core.cli.compare._on_test", lambda workspace, dataset, *names: [figures[n] for n in names])
    monkeypatch.setattr(paired, "differences", lambda a, b: {"P_at_1": around(len(a) - len(b))})
    ended = xc("compare", *TOY, "better", "worse")
    assert ended.out.splitlines()[1:] == ["P@1       +10.00   [+9.00, +11.00]"], "no head, torso and tail"
    again = "has no figures of head, torso and tail labels; make it again: xc run evaluation --dataset toy --recipe"
    assert all(f"{again} {name} --force" in ended.err for name in ("better", "worse")), "as after an earlier version"
    assert xc("compare", *TOY, "worse", "better").out.splitlines()[1] == "P@1       -10.00   [-11.00, -9.00]"


def test_a_metric_that_no_test_document_defines_is_no_number(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = PairedDifference(math.nan, math.nan, math.nan)
    monkeypatch.setattr(paired, "differences", lambda *models: {"PSP_at_1": unknown})
    ended = xc("compare", *TOY, "ngame", "ngame:classifier")
    assert ended.out.splitlines()[1:] == ["PSP@1          -   no test document has a label"]


def test_validation_documents_are_compared_by_the_figures_of_the_fusion(xc: Xc, ready: Workspace) -> None:
    facts = artifacts.read_made(ready.folder("fusion", "toy", "ngame")).facts
    by_name = {**facts["validation"], "rule": facts["validation"]["fusion"], "fusion": facts["figures"]}
    for ours, theirs in (("ngame", "ngame:label_text"), ("ngame:rule", "ngame:sum"), ("ngame:sum", "ngame")):
        shown = xc("compare", *VALIDATION, ours, theirs).out.splitlines()
        documents = f"{facts['documents']} validation documents"
        assert shown[0] == f"toy: {ours} minus {theirs}, {documents}, points of percent"
        for metric in ("P_at_1", "P_at_5", "PSP_at_5"):
            ours_at, theirs_at = (by_name[name.partition(":")[2] or "fusion"][metric] for name in (ours, theirs))
            (line,) = (line for line in shown if line.startswith(f"{titled(metric)} "))
            assert float(line.split()[1]) == pytest.approx(ours_at - theirs_at, abs=0.006)
    xc("compare", *VALIDATION, "ngame", "ngame:classifer").refused(64, "nearest: 'classifier'", "fix the name")
    xc("compare", *VALIDATION, "ngame", "ngme").refused(
        66, "no fusion of 'ngme' on toy (nearest: 'ngame')", "fix the name"
    )


def stored(rows: list[int], right: list[float], folder: Path) -> StoredFigures:
    """Return figures by P@1 alone."""
    file = StoredFigures(folder / f"{len(list(folder.iterdir()))}.npz")
    figures = PerDocument({"P_at_1": np.array(right)}, {"P_at_1": np.ones(len(rows))})
    file.write({"fusion": figures}, ["P_at_1"], np.array(rows))
    return file


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch, ready: Workspace) -> dict[str, StoredFigures | None]:
    """Figures of validation documents by recipe, put in place of the files."""
    found: dict[str, StoredFigures | None] = {}
    monkeypatch.setattr("xc_core.metrics.validation.open_validation", lambda folder: found[folder.parent.name])
    monkeypatch.setattr("xc_core.chain.reports.of_present_corpus", lambda *names: True)
    monkeypatch.setattr("xc_core.cli.compare.check_made", lambda *names: None)
    return found


def test_validation_documents_that_one_model_has_seen_are_left_out(
    xc: Xc, of: dict[str, StoredFigures | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of["a"] = stored([1, 4, 6, 7], [1.0, 0.0, 1.0, 0.0], tmp_path)
    of["b"] = stored([0, 4, 7], [1.0, 1.0, 0.0], tmp_path)
    shown = xc("compare", *VALIDATION, "a", "b").out.splitlines()
    assert shown[0] == "toy: a minus b, 2 validation documents, points of percent"
    assert shown[1].split()[:2] == ["P@1", "-50.00"], "0 and 0 against 1 and 0"
    of["b"] = stored([0, 3], [1.0, 1.0], tmp_path)
    xc("compare", *VALIDATION, "a", "b").refused(66, "no validation document that neither a nor b had seen")
    of["b"] = None
    for documents, do in ((3, "xc run fusion --dataset toy --recipe b --force"), (0, "encoder.refit=false")):
        made = Made(facts={"documents": documents})
        monkeypatch.setattr(Workspace, "made", lambda *_, made=made: made)
        xc("compare", *VALIDATION, "a", "b").refused(66, "no figures of validation documents of b on toy", do)


def test_a_fusion_that_could_not_be_tested_has_no_figures_of_its_own(
    xc: Xc, of: dict[str, StoredFigures | None], tmp_path: Path
) -> None:
    """As if all validation documents were of one family: no part of the name is wrong."""
    of["a"] = file = StoredFigures(tmp_path / "a.npz")
    file.write({"sum": PerDocument({"P_at_1": np.ones(1)}, {"P_at_1": np.ones(1)})}, ["P_at_1"], np.arange(1))
    xc("compare", *VALIDATION, "a", "a:sum").refused(64, "score 'fusion' of a", "name a score: a:sum")


def test_validation_documents_of_which_one_model_leaves_a_label_out_are_left_out(
    xc: Xc, of: dict[str, StoredFigures | None], tmp_path: Path
) -> None:
    """Another refit leaves out other labels: a document with two labels would be compared to itself with one."""

    def ranked(name: str, positives: list[float]) -> StoredFigures:
        one, den = np.ones(3), {"P_at_5": np.full(3, 5.0), "PSP_at_5": np.array(positives)}
        file = StoredFigures(tmp_path / name)
        file.write({"fusion": PerDocument({"P_at_5": np.array(positives), "PSP_at_5": one}, den)}, den, np.arange(3))
        return file

    of["a"], of["b"] = ranked("a.npz", [2.0, 1.0, 1.0]), ranked("b.npz", [1.0, 1.0, 1.0])
    shown = xc("compare", *VALIDATION, "a", "b").out.splitlines()
    assert shown[0] == "toy: a minus b, 2 validation documents, points of percent"
    assert shown[1].split()[:2] == ["P@5", "+0.00"]
    of["b"] = ranked("c.npz", [1.0, 2.0, 2.0])
    xc("compare", *VALIDATION, "a", "b").refused(66, "with the same labels for both", "the same classifier.refit")


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_fusion_of_an_earlier_version_is_compared_by_the_figures_that_it_has(
    xc: Xc, of: dict[str, StoredFigures | None], tmp_path: Path, order: tuple[str, str]
) -> None:
    for name, metrics in (("a", ("P_at_1", *RECALL.values())), ("b", ("P_at_1",))):
        ones = dict.fromkeys(metrics, np.ones(3))
        of[name] = file = StoredFigures(tmp_path / f"{name}.npz")
        file.write({"fusion": PerDocument(ones, ones)}, metrics, np.arange(3))
    ended = xc("compare", *VALIDATION, *order)
    assert [line.split()[0] for line in ended.out.splitlines()[1:]] == ["P@1"]
    assert "the stage fusion of b has no figures of head" in ended.err and "fusion of a has no figures" not in ended.err
    assert "xc run fusion --dataset toy --recipe b --force" in ended.err


def test_a_recipe_need_not_be_evaluated_to_be_compared_on_validation_documents(xc: Xc, own: Workspace) -> None:
    shutil.rmtree(own.folder("evaluation", "toy", "ngame"))
    assert xc("compare", *VALIDATION, "ngame", "ngame:sum").code == 0
    xc("compare", *TOY, "ngame", "ngame:sum").refused(66, "no evaluation of 'ngame' on toy")
    file = own.folder("fusion", "toy", "ngame") / "validation.npz"
    file.write_bytes(file.read_bytes() + b"more")
    xc("compare", *VALIDATION, "ngame", "ngame:sum").refused(74, "validation.npz")


def test_figures_of_an_older_training_are_noted_with_the_command_that_trains(xc: Xc, own: Workspace) -> None:
    """The stage alone would be refused: its inputs are out of date."""
    changes = deep_merged(TOY_CHANGES, {"encoder": {"seed": 1}})
    own.params.declare_experiment("toy", "ngame", "ngame", changes)
    for documents in (TOY, VALIDATION):
        note = xc("compare", *documents, "ngame", "ngame:sum").err
        assert "Make it again: xc train --dataset toy --recipe ngame --set" in note


def test_figures_of_validation_documents_that_were_replaced_are_refused(xc: Xc, own: Workspace) -> None:
    ToyWorld.make(documents=200).write(own.raw("toy"))
    run_stage(own, "corpus", "toy")
    xc("compare", *VALIDATION, "ngame", "ngame:sum").refused(76, "on another corpus", "xc train --dataset toy")
