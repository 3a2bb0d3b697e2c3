"""``xc report``: the page of an evaluated model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import TOY, Xc
from xc_core.chain import Workspace
from xc_core.chain.reports import write_report
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings

RUN = ("toy", "ngame")


def test_the_report_shows_figures_and_examples_with_their_scores(xc: Xc, ready: Workspace, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.symlink_to("site.html")
    found = xc("report", *TOY, "--recipe", "ngame", "--out", str(out))
    assert (found.code, found.out.strip()) == (0, str(out))
    assert out.is_symlink(), "it stays one"
    page, folder = out.read_text("utf-8"), ready.folder("evaluation", "toy", "ngame")
    report, examples = (json.loads((folder / name).read_text()) for name in ("report.json", "examples.json"))
    corpus, vectors = Corpus.open(ready.folder("corpus", "toy")), Embeddings.open(ready.folder("embeddings", *RUN))
    names = corpus.table("labels")["title"].to_list()
    document = {uid: at for at, uid in enumerate(corpus.table("documents")["uid"].to_list())}
    assert f"<b>{report['metrics']['P_at_1']:.2f}</b>" in page
    for example in examples:
        assert example["right"] == example["predicted"][0]["true"]
        fused = [label["fused"] for label in example["predicted"]]
        assert fused == sorted(fused, reverse=True)
        for label in example["predicted"]:
            assert set(label["scores"]) == {"label_text", "classifier", "frequency"}
            assert label["true"] == (label["label"] in example["true"])
            cosine = vectors.documents_ND[document[example["uid"]]] @ vectors.labels_LD[names.index(label["label"])]
            assert abs(label["scores"]["label_text"] - cosine) < 1e-3
    assert len(examples) == 12
    assert page.count('class="example"') == 12


def test_the_report_is_written_into_the_local_state_by_default(xc: Xc, ready: Workspace) -> None:
    found = xc("report", *TOY)
    assert found.out.strip() == str(ready.state / "reports" / "toy" / "ngame.html")
    assert Path(found.out.strip()).is_file()


def test_without_an_evaluation_the_message_names_the_command_that_makes_one(xc: Xc, fresh: Workspace) -> None:
    fresh.params.declare_experiment("toy", "ngame", "ngame", {"encoder": {"epochs": 2}})
    command = "xc train --dataset toy --recipe ngame --set encoder.epochs=2"
    xc("report", *TOY).refused(66, "no evaluation of 'ngame' on toy", command)


def test_a_report_shows_no_facts_of_data_that_came_later(
    ready: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workspace, "digest", lambda *_: "another corpus")
    page = write_report(ready, "toy", "ngame", tmp_path / "page.html").read_text("utf-8")
    assert "the data have changed since this evaluation" in page
    assert "labels each" not in page


def test_a_report_on_nothing_is_refused(xc: Xc, ready: Workspace) -> None:
    do = "xc train --dataset toy --recipe ngam"
    xc("report", *TOY, "--recipe", "ngam").refused(
        66, "no experiment 'toy_ngam' in params.yaml (nearest: 'toy_ngame')", do
    )
    xc("report", *TOY, "--recipe", "dpr").refused(66, "no experiment 'toy_dpr' in params.yaml")
