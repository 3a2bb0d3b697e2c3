"""The content of a local model folder is in the fingerprints of what is made from it; packaged encoders add nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.chain.toy import Edit, changed, parts_of, print_of, prints, read_json, states_of
from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.dataset import TokensConfig
from xc_core.chain.fingerprints import write_settings
from xc_core.chain.status import Status
from xc_core.encoders import ENCODERS, EncoderConfig
from xc_core.errors import MissingError
from xc_core.planning import budget
from xc_core.pretrained import locate

MODEL = "experiments/toy_ngame/stages/encoder"


@pytest.fixture
def model(trained: Workspace, tmp_path: Path) -> Path:
    """A folder with a tiny BERT and a tokenizer that knows the words of the toy corpus."""
    import torch
    import transformers

    torch.manual_seed(0)
    folder = tmp_path / "model"
    store = trained.folder("tokens", "toy") / "wordpiece"
    size = len(read_json(store / "tokenizer.json")["model"]["vocab"])
    config = transformers.BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(folder)
    shutil.copy(store / "tokenizer.json", folder)
    return folder


@pytest.fixture
def from_folder(copied: Workspace, model: Path, edit: Edit) -> Workspace:
    """The toy experiment with that encoder as it was pretrained; tokens and encoder are made."""
    encoder = {"name": str(model), "max_length": 16, "precision": "fp32", "frozen_layers": 1}
    edit(copied, {"datasets/toy/tokens/tokenizers": ["wordpiece", str(model)]})
    edit(copied, {f"{MODEL}/encoder": encoder, f"{MODEL}/epochs": 0.0})
    for stage in ("tokens", "encoder"):
        run_stage(copied, stage, "toy", "ngame")
    return copied


def spoil_json(path: Path) -> None:
    path.write_text(json.dumps(read_json(path) | {"of another model": 1}))


def found(workspace: Workspace) -> dict[str, tuple[Status, str]]:
    states = states_of(workspace)
    return {name: (states[name].status, states[name].why) for name in ("tokens", "encoder", "embeddings")}


def prints_of(workspace: Workspace) -> dict[str, str]:
    """Return the fingerprints of the stages that are made."""
    return {name: print_of(workspace, name) for name in ("corpus", "tokens", "encoder")}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_another_model_in_the_folder_makes_the_encoder_stale(from_folder: Workspace, model: Path, name: str) -> None:
    before = prints_of(from_folder)
    assert found(from_folder)["encoder"] == (Status.FRESH, "")
    if name == "config.json":
        spoil_json(model / name)
    else:
        content = bytearray((model / name).read_bytes())
        content[-1] ^= 1
        (model / name).write_bytes(content)
    assert changed(before, prints_of(from_folder)) == {"encoder"}
    assert found(from_folder)["tokens"] == (Status.FRESH, "")
    assert found(from_folder)["encoder"] == (Status.STALE, f"model in {model} changed")
    assert found(from_folder)["embeddings"] == (Status.STALE, "encoder is out of date")
    assert not run_stage(from_folder, "encoder", "toy", "ngame").skipped
    assert run_stage(from_folder, "encoder", "toy", "ngame").skipped


def test_another_tokenizer_makes_tokens_and_encoder_stale(from_folder: Workspace, model: Path) -> None:
    content = read_json(model / "tokenizer.json")
    content["normalizer"]["lowercase"] = False
    (model / "tokenizer.json").write_text(json.dumps(content))
    assert found(from_folder)["tokens"] == (Status.STALE, f"tokenizer in {model} changed")
    assert found(from_folder)["encoder"] == (Status.STALE, "tokens is out of date")
    store = manifests.read_manifest(next(from_folder.folder("tokens", "toy").glob("*model*"))).digest()
    assert not run_stage(from_folder, "tokens", "toy").skipped
    assert manifests.read_manifest(next(from_folder.folder("tokens", "toy").glob("*model*"))).digest() != store
    assert found(from_folder)["encoder"] == (Status.STALE, "tokens changed")


def test_without_tokenizer_json_every_file_that_a_tokenizer_may_be_made_from_counts(tmp_path: Path) -> None:
    for name in ("vocab.txt", "tokenizer_config.json", "README.md", "model.safetensors"):
        (tmp_path / name).write_text("")
    files = TokensConfig(tokenizers=(str(tmp_path),)).outside()[f"tokenizer in {tmp_path}"]
    assert [path.name for path in files] == ["tokenizer_config.json", "vocab.txt"]


def test_files_that_nothing_is_made_from_do_not_count(from_folder: Workspace, model: Path) -> None:
    before = prints_of(from_folder)
    (model / "README.md").write_text("a note")
    assert prints_of(from_folder) == before


def test_a_budget_times_again_if_the_folder_has_another_model(
    from_folder: Workspace, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of twice the layers had the timings of the first one until --force."""
    import transformers

    timed = list[int]()
    estimate = SimpleNamespace(seconds=lambda: timed.append(1) or {"encoding": 1.0, "scores": 0.0, "classifier": 9.0})
    monkeypatch.setattr(budget._Estimate, "of", lambda *_: estimate)
    experiment = from_folder.params.experiment("toy", "ngame")
    for _ in range(2):
        budget.scaled_epochs(from_folder, experiment, 5.0)
    assert len(timed) == 1
    config = transformers.BertConfig(**{**read_json(model / "config.json"), "num_hidden_layers": 2})
    transformers.BertModel(config).save_pretrained(model)
    for _ in range(2):
        budget.scaled_epochs(from_folder, experiment, 5.0)
    assert len(timed) == 2


def test_files_are_hashed_once_until_one_of_them_changes(
    from_folder: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parts_of(from_folder, "encoder")
    monkeypatch.setattr(artifacts, "sha256_file", lambda path: pytest.fail(f"{path} is read again"))
    assert parts_of(from_folder, "encoder") == before


def test_the_settings_files_that_dvc_compares_change_with_the_folder(from_folder: Workspace, model: Path) -> None:
    path = from_folder.settings_file("encoder", "toy", "ngame")
    before = path.read_text()
    spoil_json(model / "config.json")
    write_settings(from_folder, from_folder.params.experiment("toy", "ngame"))
    assert path.read_text() != before
    assert list(json.loads(path.read_text())["outside"]) == [f"model in {model}"]


def test_what_was_made_from_a_folder_that_is_gone_stays_up_to_date(from_folder: Workspace, model: Path) -> None:
    path = from_folder.settings_file("encoder", "toy", "ngame")
    files, before = path.read_text(), prints_of(from_folder)
    shutil.rmtree(model)
    assert prints_of(from_folder) == before
    for stage in ("tokens", "encoder"):
        assert run_stage(from_folder, stage, "toy", "ngame").skipped
    assert path.read_text() == files


def test_a_training_from_a_folder_that_is_gone_says_so(from_folder: Workspace, model: Path, edit: Edit) -> None:
    shutil.rmtree(model)
    edit(from_folder, {f"{MODEL}/seed": 3})
    assert found(from_folder)["encoder"][0] is Status.STALE
    with pytest.raises(MissingError, match="no folder"):
        run_stage(from_folder, "encoder", "toy", "ngame")


def test_a_tokenizer_that_was_left_out_because_its_folder_was_gone_is_used_when_it_is_back(
    from_folder: Workspace, model: Path, edit: Edit
) -> None:
    away = model.rename(model.parent / "away")
    edit(from_folder, {"datasets/toy/tokens/max_tokens": 20})
    run_stage(from_folder, "tokens", "toy")
    stores = from_folder.folder("tokens", "toy")
    assert [path.name for path in stores.iterdir() if path.is_dir()] == ["wordpiece"]
    assert run_stage(from_folder, "tokens", "toy").skipped
    away.rename(model)
    assert found(from_folder)["tokens"] == (Status.STALE, f"tokenizer in {model} changed")
    run_stage(from_folder, "tokens", "toy")
    assert len([path for path in stores.iterdir() if path.is_dir()]) == 2


@pytest.mark.parametrize("name", ["minilm", "bag", "wordpiece", "sentence-transformers/all-MiniLM-L6-v2"])
def test_packaged_encoders_and_names_on_the_hub_add_nothing_to_a_fingerprint(name: str) -> None:
    if name != "bag":  # its tokenizer is wordpiece
        assert TokensConfig(tokenizers=(name,)).outside() == {}
    if name != "wordpiece":
        assert EncoderConfig(name=name).outside() == {}


def test_a_relative_folder_is_one_of_the_project_wherever_a_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere it would count as absent, and an absent folder as unchanged."""
    (tmp_path / "params.yaml").touch()
    for folder in ("models/m", "notes/deep"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "models/m/config.json").write_text("{}")
    found = []
    for here in (".", "notes/deep"):
        monkeypatch.chdir(tmp_path / here)
        found.append([EncoderConfig(name=name).outside() for name in ("./models/m", "models/m")])
        assert locate("models/m") == tmp_path / "models/m"
    assert found[0] == found[1]
    assert all(list(one.values()) == [[tmp_path / "models/m/config.json"]] for one in found[0])
    monkeypatch.chdir(tmp_path.parent)
    assert EncoderConfig(name="models/m").outside() == {}
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    assert locate("./models/m") == tmp_path / "models/m"


def test_a_folder_named_like_an_encoder_family_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*ENCODERS.names(), "wordpiece", "minilm"):
        (tmp_path / name).mkdir()
    found = [EncoderConfig(name=name).outside() for name in {*ENCODERS.names(), "minilm"} - {"transformer"}]
    found.append(TokensConfig(tokenizers=("wordpiece", "minilm")).outside())
    assert not any(found)


def test_a_chain_without_a_local_folder_has_the_parts_that_it_had(trained: Workspace) -> None:
    assert prints(trained).keys() == set(STAGES) - {"leaderboard"}
    assert not any(" in " in part for name in prints(trained) for part in parts_of(trained, name))
