"""Documents held out for the acceptance set: by a hash, families whole, no label without documents, never learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace, open_corpus
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import ACCEPTANCE, TRAIN, VALIDATION, digests, is_acceptance, is_validation
from xc_core.errors import ConfigError


def held(root: Path, world: ToyWorld, fraction: float = 0.2, split: str = "uid") -> Workspace:
    workspace = make_workspace(root, world)
    workspace.params.declare_dataset("toy", IngestConfig(acceptance_fraction=fraction, split=split))
    run_stage(workspace, "corpus", "toy")
    return workspace


def uids(found: Corpus, split: str) -> set[str]:
    return set(found.uids(found.rows(split)))


def test_the_share_asked_is_held_out_of_train_alone(toy: ToyWorld, tmp_path: Path) -> None:
    plain, found = open_corpus(held(tmp_path / "plain", toy, 0.0)), open_corpus(held(tmp_path / "held", toy))
    accepted = uids(found, ACCEPTANCE)
    assert 0.1 < len(accepted) / 240 < 0.3
    assert uids(plain, TRAIN) == uids(found, TRAIN) | accepted
    assert uids(plain, VALIDATION) == uids(found, VALIDATION)
    assert not accepted & set(found.uids(found.published_rows()))
    assert found.facts["rows"] == {split: len(found.rows(split)) for split in (TRAIN, VALIDATION, "test", ACCEPTANCE)}
    pairs = {split: int(found.labels.rows(found.rows(split)).counts_N.sum()) for split in found.facts["rows"]}
    assert found.facts["pairs"] == pairs


def test_without_a_share_the_corpus_is_what_it_was(toy: ToyWorld, tmp_path: Path) -> None:
    found = open_corpus(held(tmp_path, toy, 0.0))
    assert sorted(found.facts["rows"]) == ["test", "train", "validation"]
    assert len(found.rows(ACCEPTANCE)) == 0


def test_a_document_is_held_out_in_every_ingest(toy: ToyWorld, tmp_path: Path) -> None:
    first = uids(open_corpus(held(tmp_path / "first", toy)), ACCEPTANCE)
    fewer = ToyWorld(toy.train[::-1][:200], toy.test, toy.labels)
    assert uids(open_corpus(held(tmp_path / "fewer", fewer)), ACCEPTANCE) == first & {row["uid"] for row in fewer.train}


def test_no_document_can_be_asked_for_both_splits() -> None:
    digest_N = digests([f"u{i}" for i in range(5000)])
    accepted = is_acceptance(digest_N, 0.3)
    assert abs(accepted.mean() - 0.3) < 0.03
    assert not (accepted & is_validation(digest_N, 0.7)).any()


def test_a_rare_label_keeps_a_train_document(toy: ToyWorld, tmp_path: Path) -> None:
    """Forty labels have one train document each."""
    rare = [{"uid": f"R{i}", "title": f"rare{i}", "content": ""} for i in range(40)]
    for i in range(40):
        toy.train[i] = {**toy.train[i], "target_ind": [*toy.train[i]["target_ind"], 10 + i]}
        toy.train[i]["target_rel"] = [1.0] * len(toy.train[i]["target_ind"])
    found = open_corpus(held(tmp_path, ToyWorld(toy.train, toy.test, [*toy.labels, *rare]), 0.4))
    assert len(found.rows(ACCEPTANCE)) > 30
    assert (found.published_train().frequency_L() > 0).all()


def test_a_family_is_held_out_whole(toy: ToyWorld, tmp_path: Path) -> None:
    twins = [{**row, "uid": f"{row['uid']}-twin"} for row in toy.train]
    found = open_corpus(held(tmp_path, ToyWorld([*toy.train, *twins], toy.test, toy.labels), 0.3, "family"))
    accepted = uids(found, ACCEPTANCE)
    assert accepted
    originals = {uid.removesuffix("-twin") for uid in accepted}
    assert accepted == originals | {f"{uid}-twin" for uid in originals}


def test_no_stage_learns_from_a_document_that_is_held_out(toy: ToyWorld, tmp_path: Path) -> None:
    """If they exchange their labels, no byte of the model's weights changes.

    Only how many documents of the train file a label has may count: it says which labels are rare (``Fold.counts``).
    """

    def trained(root: Path, world: ToyWorld) -> Workspace:
        workspace = held(root, world)
        workspace.params.declare_experiment("toy", "ngame", "ngame", TOY_CHANGES)
        for name in STAGES:
            if name not in ("audit", "leaderboard"):  # the model reads neither
                run_stage(workspace, name, "toy", "ngame")
        return workspace

    first = trained(tmp_path / "first", toy)
    accepted = [row for row in toy.train if row["uid"] in uids(open_corpus(first), ACCEPTANCE)]
    names = ("target_ind", "target_rel")
    given = {
        row["uid"]: {name: later[name] for name in names}
        for row, later in zip(accepted, [*accepted[1:], accepted[0]], strict=True)
    }
    other = [row | given.get(row["uid"], {}) for row in toy.train]
    second = trained(tmp_path / "second", ToyWorld(other, toy.test, toy.labels))
    assert open_corpus(first).digest != open_corpus(second).digest
    digests_of = [w.digest("model", "toy", "ngame") for w in (first, second)]
    assert digests_of[0] == digests_of[1]


@pytest.mark.parametrize("fraction", [-0.1, 0.51, float("nan")])
def test_a_share_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="acceptance_fraction"):
        IngestConfig(acceptance_fraction=fraction)


def test_the_hash_is_uniform_and_has_ends() -> None:
    digest_N = digests([f"u{i}" for i in range(1000)])
    few, more = is_acceptance(digest_N, 0.2), is_acceptance(digest_N, 0.4)
    assert not is_acceptance(digest_N, 0.0).any()
    assert is_acceptance(digest_N, 1.0).sum() >= 999
    assert np.array_equal(few & more, few), "a larger share contains it"
