"""``xc ablate``: a fusion without some scores is that of a recipe which never had them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import NGAME, Xc
from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import run_until
from xc_core import artifacts
from xc_core.chain import Workspace, reports, run_stage
from xc_core.cli import ablate as command
from xc_core.cli.ablate import _show
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.splits import VALIDATION
from xc_core.fusion import Sum, Tree
from xc_core.infer.ablation import METRICS, Ablation
from xc_core.infer.gathered import HeldOut, second_half
from xc_core.metrics.evaluation import FUSION
from xc_core.metrics.paired import PairedDifference
from xc_core.metrics.ranking import PerDocument
from xc_core.params import deep_merged
from xc_core.recipes.settings import inputs_of
from xc_core.scores import Scores

NAMES = ("label_text", "classifier", "frequency")
CHANGES = deep_merged(
    TOY_CHANGES,
    {
        "encoder": {"epochs": 0.0},
        "classifier": {"epochs": 0.5, "refit": True, "enough": 4_500},
        "scores": {"label_text": {"search": True}},
        "fusion": {"candidates": 2, "rule": {"kind": "tree", "min_leaf": 3}, "fallback": False},
    },
)
"""Few candidates, so that each score proposes some that no other one does; little training, so that scores err; two
held-out trainings, whose documents follow each other in another order than their rows."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("ablated"))
    made.params.declare_experiment("toy", "ngame", "ngame", CHANGES)
    run_until(made, "fusion")
    return made


@pytest.fixture
def ablation(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Ablation:
    """Return that of documents in families of neighbouring rows."""
    monkeypatch.setattr(Corpus, "family_names", lambda self, rows: [str(row // 3) for row in rows])
    made = Ablation.of(
        workspace.open(Corpus, "toy"),
        workspace.open(Embeddings, "toy", "ngame"),
        workspace.open(Scores, "toy", "ngame"),
        rows=4_500,
        k=2,
    )
    assert made is not None
    return made


def validation(workspace: Workspace, recipe: str) -> dict[str, float]:
    """Return the cross-fitted figures of the rule that the stage fusion has measured."""
    found: dict[str, float] = artifacts.read_made(workspace.folder("fusion", "toy", recipe)).facts["validation"][FUSION]
    return found


def ablated(xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    monkeypatch.chdir(workspace.root)
    ended = xc("ablate", *NGAME, "--json", *arguments)
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


@pytest.mark.parametrize("missing", [("label_text",), ("classifier",), ("frequency",), ("classifier", "frequency")])
def test_a_score_left_out_is_one_that_the_recipe_never_had(
    xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    """Its candidates go too, and the scores that stay have the columns that they had alone."""
    changes = deep_merged(CHANGES, {"scores": dict.fromkeys(missing)})
    workspace.params.declare_experiment("toy", "less", "ngame", changes)
    for stage in ("encoder", "embeddings", "clusters", "negatives", "classifier", "scores", "fusion"):
        run_stage(workspace, stage, "toy", "less")
    found = ablated(xc, workspace, monkeypatch, "--divisions", "1", "--without", ",".join(missing))
    own, whole = validation(workspace, "less"), validation(workspace, "ngame")
    assert found["fusion"] == pytest.approx({name: whole[name] for name in METRICS})
    (row,) = found["rows"].values()
    assert own != whole or missing == ("frequency",), "the row has something to find"
    for name in METRICS:
        assert row[name]["points"] == pytest.approx(own[name] - whole[name], abs=1e-9), name


def test_the_same_scores_by_either_option(xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    without = ablated(xc, workspace, monkeypatch, "--without", " frequency , label_text")["rows"]
    only = ablated(xc, workspace, monkeypatch, "--only", "classifier")["rows"]
    assert without.keys() == {"without label_text, frequency"} and only.keys() == {"only classifier"}
    assert list(without.values()) == list(only.values())


def test_every_score_is_left_out_by_default(xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.root)
    shown, found = xc("ablate", *NGAME).out.splitlines(), ablated(xc, workspace, monkeypatch)
    assert shown[0] == (
        f"toy / ngame: {found['documents']} validation documents, the dial at 0, mean of 3 divisions into halves"
    )
    assert shown[1].split() == ["P@1", "P@5", "PSP@5"]
    assert shown[2].split() == ["all", "3", "scores", *(f"{found['fusion'][name]:.2f}" for name in METRICS)]
    for line, (title, row) in zip(shown[3:-1], found["rows"].items(), strict=True):
        assert line.startswith(title)
        for name in METRICS:
            change, clear = row[name], "*" if row[name]["clear"] else ""
            assert f"{change['points']:+z.2f} [{change['low']:+z.2f}, {change['high']:+z.2f}]{clear}" in line
    assert [title.removeprefix("without ") for title in found["rows"]] == list(NAMES)


def test_columns_are_apart_and_aligned_whatever_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    whole = PerDocument({name: np.array([1.0]) for name in METRICS}, {name: np.ones(1) for name in METRICS})
    wide, narrow = PairedDifference(-10.16, -10.95, -9.34), PairedDifference(0.5, 0.1, 0.9)
    _show(whole, 3, {"without a": dict.fromkeys(METRICS, wide), "without b": dict.fromkeys(METRICS, narrow)})
    head, _, first, second, _ = capsys.readouterr().out.splitlines()
    assert first.count("-10.16 [-10.95, -9.34]*  ") == 2
    assert [head.index(f" {name} ") for name in ("P@1", "P@5")] == [first.index("-10.16") - 1, first.index("*  ") + 2]
    assert second.index("+0.50") == first.index("-10.16")


def test_a_row_whose_scores_cannot_rank_says_so(xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.root)
    shown = xc("ablate", *NGAME, "--only", "frequency").out.splitlines()
    assert shown[3] == "only frequency  no score that searches, or none that is fused"
    assert json.loads(xc("ablate", *NGAME, "--json", "--only", "frequency").out)["rows"] == {"only frequency": {}}


def test_a_figure_without_documents_is_null_in_json(
    xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON has no NaN; ``json.loads`` of Python alone would read it."""
    measure = Ablation.measure

    def undefined(*arguments: Any) -> PerDocument | None:
        figures = measure(*arguments)
        assert figures is not None
        num, den = ({name: values.copy() for name, values in part.items()} for part in (figures.num, figures.den))
        num["P_at_5"][:], den["P_at_5"][:] = 0, 0
        return replace(figures, num=num, den=den)

    monkeypatch.setattr(Ablation, "measure", undefined)
    monkeypatch.chdir(workspace.root)
    ended = xc("ablate", *NGAME, "--json", "--only", "classifier")
    found = json.loads(ended.out, parse_constant=pytest.fail)
    assert found["fusion"]["P_at_5"] is None and found["fusion"]["P_at_1"] > 0
    gone = found["rows"]["only classifier"]["P_at_5"]
    assert (gone["points"], gone["low"], gone["high"], gone["clear"]) == (None, None, None, False)


def test_wrong_arguments_are_refused(xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.root)
    mistyped = xc("ablate", *NGAME, "--without", "classifer")
    mistyped.refused(64, "score 'classifer' (nearest: 'classifier') in --without")
    assert "expected: one of label_text, classifier, frequency\n" in mistyped.err
    xc("ablate", *NGAME, "--only", "").refused(64, "score '' in --only", "fix the name")
    xc("ablate", *NGAME, "--without", ",".join(NAMES)).refused(64, "no score", "leave out fewer")
    xc("ablate", "--dataset", "toy", "--recipe", "astra").refused(66, "'toy_astra'")
    assert "--divisions" in xc("ablate", *NGAME, "--divisions", "0").err


@pytest.mark.parametrize("older", ["embeddings", "scores"])
def test_scores_and_vectors_of_another_corpus_are_refused(
    xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    """Their rows would be those of other documents."""
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(reports, "of_present_corpus", lambda workspace, dataset, recipe, stage: stage != older)
    xc("ablate", *NGAME).refused(76, "another corpus", "xc train --dataset toy")


def test_figures_of_scores_that_are_out_of_date_say_so(
    xc: Xc, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(command, "stale_note", lambda workspace, *asked: f"note: {' '.join(asked)}")
    ended = xc("ablate", *NGAME, "--json", "--only", "frequency")
    assert (ended.code, ended.err.strip()) == (0, "note: toy ngame scores") and json.loads(ended.out)


def test_scores_that_have_seen_all_documents_cannot_be_compared(
    xc: Xc, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_workspace(tmp_path_factory.mktemp("seen"))
    changes = deep_merged(CHANGES, {"encoder": {"refit": True, "epochs": 0.5}, "fusion": {"rule": {"kind": "sum"}}})
    made.params.declare_experiment("toy", "ngame", "ngame", changes)
    run_until(made, "scores")
    monkeypatch.chdir(made.root)
    xc("ablate", *NGAME).refused(66, "no validation documents of toy that the scores of ngame had not seen", "refit")


def test_only_validation_documents_are_ranked(workspace: Workspace, ablation: Ablation) -> None:
    corpus = workspace.open(Corpus, "toy")
    texts = corpus.labels.rows(corpus.rows(VALIDATION))
    assert 15 < len(ablation) <= len(texts)
    assert len(ablation.gathered.truth.indices) <= len(texts.indices)


def test_a_rule_that_names_scores_reads_those_that_are_left(workspace: Workspace, ablation: Ablation) -> None:
    parts = workspace.open(Scores, "toy", "ngame").parts
    less = inputs_of({name: parts[name] for name in ("label_text", "frequency")})
    tree = Tree(min_leaf=3, add=("label_text", "classifier"), features=NAMES)
    named, own = ablation.measure(tree, less, 1), ablation.measure(Tree(min_leaf=3, add=("label_text",)), less, 1)
    assert named is not None and own is not None
    assert named.total() == own.total()
    assert ablation.measure(Tree(add=("classifier",)), less, 1) is None, "the rule adds no score that is left"


def test_a_rule_that_learns_nothing_is_not_divided(workspace: Workspace, ablation: Ablation) -> None:
    parts = workspace.open(Scores, "toy", "ngame").parts
    sums = [ablation.measure(Sum(), inputs_of(parts), divisions) for divisions in (1, 5)]
    assert sums[0] is not None and sums[1] is not None and sums[0].total() == sums[1].total()


def test_documents_of_one_family_cannot_be_divided(workspace: Workspace, ablation: Ablation) -> None:
    inputs = inputs_of(workspace.open(Scores, "toy", "ngame").parts)
    alone = replace(ablation, families_N=np.zeros_like(ablation.families_N))
    assert alone.measure(Tree(min_leaf=3), inputs, 1) is None
    assert alone.measure(Sum(), inputs, 1) is not None, "a rule that learns nothing needs no halves"


def test_families_are_those_of_the_documents(workspace: Workspace, ablation: Ablation) -> None:
    corpus, scores = workspace.open(Corpus, "toy"), workspace.open(Scores, "toy", "ngame")
    rows = np.concatenate([subset.rows for subset in HeldOut.of_all(corpus, scores.folds, 4_500)])
    assert (np.diff(rows) < 0).any(), "of two trainings"
    np.testing.assert_array_equal(ablation.families_N, np.unique(np.sort(rows) // 3, return_inverse=True)[1])


def test_divisions_are_of_families_and_differ(ablation: Ablation) -> None:
    halves = [second_half(ablation.families_N, number) for number in range(4)]
    for second_N in halves:
        for family in np.unique(ablation.families_N):
            assert len(set(second_N[ablation.families_N == family])) == 1
        assert 0.3 < second_N.mean() < 0.7
    np.testing.assert_array_equal(halves[0], ablation.families_N % 2 == 1)
    assert len({tuple(second_N) for second_N in halves}) == 4


def test_the_mean_of_divisions_keeps_the_denominators() -> None:
    den = {"P_at_1": np.ones(2)}
    parts = [PerDocument({"P_at_1": np.array(num)}, den) for num in ([0.0, 1.0], [1.0, 1.0])]
    assert PerDocument.mean(parts).total() == {"P_at_1": 75.0}
