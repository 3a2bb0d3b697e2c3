"""Parts of an experiment, from the command line and params.yaml: their kinds, their own settings, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chain.toy import STAGES_OF, Edit
from xc_core.chain import Workspace
from xc_core.cli.main import main
from xc_core.errors import ConfigError
from xc_core.losses import SupCon, Triplet
from xc_core.recipes import find_recipe
from xc_core.sampling import Random, StoredClusters

NGAME = find_recipe("ngame")


@pytest.fixture
def root(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("XC_ROOT", str(workspace.root))
    return workspace


def train(*settings: str, recipe: str = "ngame") -> int:
    """Declare an experiment with ``xc train --set``, read its corpus and no more; return the exit code."""
    flags = [flag for setting in settings for flag in ("--set", setting)]
    with pytest.raises(SystemExit) as caught:
        main(["train", "--dataset", "toy", "--recipe", recipe, "--until", "corpus", "--budget", "none", *flags])
    return int(caught.value.code or 0)


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        (("encoder.loss=supcon",), SupCon()),
        (("encoder.loss.margin=0.2",), Triplet(margin=0.2, hardest=10, positives=1)),
        (("encoder.loss.margin=0.2", "encoder.loss.hardest=3"), Triplet(margin=0.2, hardest=3, positives=1)),
        (("encoder.loss=supcon", "encoder.loss.temperature=0.2"), SupCon(temperature=0.2)),
        (("encoder.loss.temperature=0.2", "encoder.loss=supcon"), SupCon(temperature=0.2)),
        (("encoder.loss={kind: supcon, temperature: 0.2}",), SupCon(temperature=0.2)),
        (("encoder.loss=triplet",), NGAME.encoder.loss),
        (("encoder.loss={kind: triplet, margin: 0.1}",), Triplet(margin=0.1, hardest=10, positives=1)),
    ],
)
def test_a_loss_is_set_by_its_kind_and_its_settings(settings: tuple[str, ...], loss: Any, root: Workspace) -> None:
    """The same kind keeps what the recipe says, another kind starts from its defaults."""
    assert train(*settings) == 0
    found = root.params.experiment("toy", "ngame").recipe
    assert found.encoder.loss == loss
    assert found.classifier == NGAME.classifier


def test_other_parts_are_set_alike(root: Workspace) -> None:
    settings = ("classifier.order=random", "classifier.order.batch_size=64", "scores.classifier.index=exact")
    assert train(*settings, "fusion.rule=sum", "scores.frequency=null") == 0
    found = root.params.experiment("toy", "ngame").recipe
    assert found.classifier.order == Random(batch_size=64)
    assert found.fusion.rule.kind == "sum"
    assert list(found.scores) == ["label_text", "classifier"]
    assert found.scores["classifier"].index.kind == "exact"  # type: ignore[attr-defined]
    assert train() == 0
    assert root.params.experiment("toy", "ngame").recipe == NGAME


@pytest.mark.parametrize(
    ("setting", "found", "expected"),
    [
        ("encoder.loss.margn=1", "ngame.encoder.loss.margn (nearest: 'margin')",
         "a setting of the loss 'triplet': margin, hardest, positives, temperature"),
        ("encoder.loss={kind: supcon, margin: 0.2}", "ngame.encoder.loss.margin",
         "a setting of the loss 'supcon': temperature, forward"),
        ("classifier.order.double_every=1", "ngame.classifier.order.double_every",
         "a setting of the order 'stored-clusters': batch_size"),
        ("classifier.order.cluster_size=4", "ngame.classifier.order.cluster_size",
         "a setting of the order 'stored-clusters': batch_size"),
        ("encoder.negatives.hard=2", "ngame.encoder.negatives.hard",
         "a setting of the source of negatives 'in-batch': positives, first, share, unseen"),
        ("fusion.rule.trees=10", "ngame.fusion.rule.trees", "a setting of the fusion 'tree': "),
        ("scores.classifier.index.links=8", "ngame.scores.classifier.index.links",
         "a setting of the index 'auto': none"),
        ("encoder.loss=tripled", "loss 'tripled' (nearest: 'triplet')", "one of augment-reduce, "),
        ("encoder.loss=3", "ngame.encoder.loss = 3", "a loss ("),
        ("encoder.epoch=3", "ngame.encoder.epoch (nearest: 'epochs')", "one of encoder, order, negatives, "),
    ],
)  # fmt: skip
def test_a_setting_that_a_part_does_not_have_is_refused_with_those_that_it_has(
    setting: str, found: str, expected: str, root: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (root.root / "params.yaml").read_text()
    assert train(setting) == 78
    shown = capsys.readouterr().err
    assert f"found {found}" in shown
    assert f"expected: {expected}" in shown
    assert (root.root / "params.yaml").read_text() == before


def test_params_refuses_what_the_command_line_refuses(workspace: Workspace, edit: Edit) -> None:
    edit(workspace, {f"{STAGES_OF}/encoder/loss": {"kind": "supcon", "margin": 0.2}})
    with pytest.raises(ConfigError, match=r"ngame\.encoder\.loss\.margin") as caught:
        workspace.params.experiment("toy", "ngame")
    assert caught.value.expected == "a setting of the loss 'supcon': temperature, forward"


def test_xc_settings_shows_the_part_in_use(root: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    from ruamel.yaml import YAML

    assert train("encoder.loss=supcon", "classifier.refit=false") == 0
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["settings", "--dataset", "toy", "--recipe", "ngame"])
    shown = YAML(typ="safe").load(capsys.readouterr().out)
    assert shown["encoder"]["loss"] == {"kind": "supcon", "temperature": SupCon().temperature, "forward": 1.0}
    assert shown["classifier"]["order"] == {"kind": StoredClusters.kind, "batch_size": 1024}
    assert shown["classifier"]["enough"] == 10_000, "all settings, those without use too"
    written = json.loads((root.data / "toy/ngame/settings/classifier.json").read_text())
    assert "enough" not in written["settings"]
