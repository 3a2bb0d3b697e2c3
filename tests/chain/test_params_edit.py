"""Editing params.yaml: a declaration changes its own entry, keeps comments, and loses nothing of another process."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.chain.conftest import PARAMS
from tests.chain.test_params_read import write
from xc_core import artifacts
from xc_core.chain import Workspace, params_file
from xc_core.chain.params_file import source_of
from xc_core.cli.train import changes_of
from xc_core.data import tokenizer
from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError, MissingError
from xc_core.recipes import find_recipe


def test_comments_survive_a_declaration(bare: Workspace) -> None:
    bare.params.declare_dataset("toy", IngestConfig(validation_fraction=0.3))
    bare.params.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"epochs": 1}})
    text = (bare.root / "params.yaml").read_text()
    for comment in ("# What the chain works on.", "# the first one", "# <dataset>_<recipe>: settings.",
                    "# the paper's", "# a try", "# the end"):  # fmt: skip
        assert comment in text
    assert bare.params.experiment("toy", "ngame").dataset.corpus.validation_fraction == 0.3


REMOVED = """\
# head
datasets:
  # toy
  toy:
    corpus: {}  # of toy
  # toys
  toys: {}

# experiments
experiments:
  # toy_ngame
  toy_ngame:
    dataset: toy
    recipe: ngame
    stages:
      encoder:
        epochs: 1.0  # of toy_ngame

        # of toy_ngame, too
  # toy_other
  toy_other: {dataset: toy, recipe: other}

  # toys_ngame
  toys_ngame:
    dataset: toys
    recipe: ngame
# end
"""


def test_comments_of_other_entries_survive_a_removal(bare: Workspace) -> None:
    path = bare.root / "params.yaml"
    for removed, gone in (
        (("toy", ["ngame"], False), {"# of toy_ngame", "# of toy_ngame, too"}),
        (("toy", ["other"], False), set()),
        (("toys", ["ngame"], True), set()),
        (("toy", ["ngame", "other"], True), {"# of toy", "# of toy_ngame", "# of toy_ngame, too"}),
    ):
        path.write_text(REMOVED)
        dataset, recipes, whole = removed
        bare.params.remove(dataset, recipes, whole=whole)
        text = path.read_text()
        comments = [{line.partition("# ")[2] for line in file.splitlines()} for file in (REMOVED, text)]
        assert {f"# {comment}" for comment in comments[0] - comments[1]} == gone
        assert (dataset in bare.params.datasets()) == (not whole)
        assert len(bare.params.experiments()) == 3 - len(recipes)
    bare.params.remove("toys", ["ngame"], whole=True)
    assert bare.params.read() == {"datasets": {}, "experiments": {}}
    assert "# end\n" in path.read_text()


def test_an_entry_in_braces_or_with_an_anchor_is_removed(bare: Workspace) -> None:
    path = bare.root / "params.yaml"
    path.write_text(
        "datasets: {toy: {}, toys: {}}\nexperiments:  # all\n"
        "  toy_a: {dataset: toy, recipe: a, stages: &stages {encoder: {epochs: 2}}}\n"
        "  toy_b: {dataset: toy, recipe: b, stages: *stages}\n"
    )
    bare.params.remove("toy", ["a"], whole=False)
    assert bare.params.declared("toy", "b") == ("b", {"encoder": {"epochs": 2}})
    bare.params.remove("toy", ["b"], whole=True)
    assert bare.params.read() == {"datasets": {"toys": {}}, "experiments": {}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encoder": {"epochs": 0.5, "loss": {"kind": "supcon", "temperature": 0.1}}, "classifier": {"refit": False}},
        {"scores": ["label_text", "classifier"]},
        {"scores": {"label_text": None}, "fusion": {"rule": {"add": ["classifier", "frequency"]}}},
        {"encoder": {"encoder": {"name": "a folder/with $ome name"}}},
        *({"encoder": {"encoder": {"name": name}}} for name in ("1", "true", "null", "a: b", "a #b", "#x", "[x")),
    ],
)
def test_the_command_that_trains_an_experiment_again_repeats_its_settings(
    bare: Workspace, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "load", lambda name: None)
    bare.params.declare_experiment("toy", "ngame", "ngame", changes)
    command = shlex.split(bare.params.train_command("toy", "ngame"))
    assert command[:6] == ["xc", "train", "--dataset", "toy", "--recipe", "ngame"]
    assert set(command[6:-2:2]) <= {"--set"}
    assert changes_of(command[7:-2:2]) == changes
    assert command[-2:] == ["--budget", "none"], "epochs that no budget has scaled"


def test_the_command_repeats_another_base(bare: Workspace) -> None:
    bare.params.declare_experiment("toy", "ngame", "house", {"encoder": {"epochs": 2}})
    assert bare.params.train_command("toy", "ngame").endswith(
        "--recipe ngame --base house --set encoder.epochs=2 --budget none"
    )


def test_a_variant_is_trained_again_by_its_name(bare: Workspace) -> None:
    bare.params.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"epochs": 1}})
    assert bare.params.train_command("toy", "ngame-short") == "xc train --dataset toy --recipe ngame-short"


def test_a_file_that_is_a_link_stays_one(bare: Workspace, tmp_path: Path) -> None:
    shared = tmp_path / "shared.yaml"
    (bare.root / "params.yaml").rename(shared)
    (bare.root / "params.yaml").symlink_to(shared)
    bare.params.declare_dataset("new", IngestConfig())
    assert (bare.root / "params.yaml").is_symlink()
    assert "new:" in shared.read_text("utf-8")


def test_a_comment_stays_above_what_it_is_about(bare: Workspace) -> None:
    bare.params.declare_dataset("second", IngestConfig())
    lines = (bare.root / "params.yaml").read_text().splitlines()
    assert lines[lines.index("# <dataset>_<recipe>: settings.") + 1] == "experiments:"
    assert lines.index("  second:") < lines.index("# <dataset>_<recipe>: settings.")


def test_the_same_declaration_twice_leaves_the_file_alone(bare: Workspace) -> None:
    """With comments inside the entry, which a new one would not have."""

    def declare() -> tuple[int, str]:
        bare.params.declare_dataset("second", IngestConfig(filters="none"))
        bare.params.declare_experiment("second", "ngame", "ngame", {"encoder": {"epochs": 1}})
        return path.stat().st_mtime_ns, path.read_text()

    path = bare.root / "params.yaml"
    _, text = declare()
    start, found, end = text.partition("second_ngame:")
    assert found and end.count("epochs: 1\n") == 1, text
    path.write_text(f"{start}{found}{end.replace('epochs: 1', 'epochs: 1  # enough')}")
    before = path.stat().st_mtime_ns, path.read_text()
    assert declare() == before and "  # enough" in before[1]


@pytest.mark.parametrize(
    "text", ["", "datasets:\nexperiments:\n", "datasets: {}\nexperiments: {}\n", "datasets:\n  toy:\n"]
)
def test_declarations_fill_what_is_empty_over_several_lines(text: str, bare: Workspace) -> None:
    write(bare, text)
    bare.params.declare_dataset("toy", IngestConfig(filters="none"))
    found = bare.params.declare_experiment("toy", "ngame", "ngame", {"encoder": {"encoder": {"name": "bag"}}})
    assert found.dataset.corpus.filters == "none"
    assert found.dataset.tokens.tokenizers == ("minilm", "wordpiece")
    assert max(map(len, (bare.root / "params.yaml").read_text().splitlines())) < 60


def test_a_declaration_brings_in_its_tokenizer_once(bare: Workspace) -> None:
    for name in ("ngame-a", "ngame-b"):
        bare.params.declare_experiment("toy", name, "ngame", {"encoder": {"encoder": {"name": "bag"}}})
    content = YAML(typ="safe").load((bare.root / "params.yaml").read_text())
    assert content["datasets"]["toy"]["tokens"] == {"tokenizers": ["minilm", "wordpiece"]}
    entry = content["experiments"]["toy_ngame-a"]
    assert (entry["tokens"], entry["base"]) == ("wordpiece", "ngame")
    assert entry["stages"] == {"encoder": {"encoder": {"name": "bag"}}}, "changes, and no empty stages"


def test_an_encoder_without_a_tokenizer_never_reaches_the_file(bare: Workspace, tmp_path: Path) -> None:
    """Among the dataset's tokenizers it would fail the tokens of every recipe."""
    for name, kind in ((f"{tmp_path}/mistyped", "no folder"), (str(tmp_path), "no tokenizer in")):
        with pytest.raises(MissingError, match=kind):
            bare.params.declare_experiment("toy", "a", "ngame", {"encoder": {"encoder": {"name": name}}})
        with pytest.raises(MissingError, match=kind):
            bare.params.declare_tokenizers("toy", [name])
    assert (bare.root / "params.yaml").read_text() == PARAMS


def test_a_tokenizer_that_its_one_experiment_gave_up_goes(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "load", lambda name: None)

    def declared(recipe: str, name: str) -> tuple[str, ...]:
        return bare.params.declare_experiment(
            "toy", recipe, "ngame", {"encoder": {"encoder": {"name": name}}}
        ).dataset.tokens.tokenizers

    assert declared("a", "owner/mistyped") == ("minilm", "owner/mistyped")
    assert declared("a", "bag") == ("minilm", "wordpiece")
    assert declared("b", "bag") == ("minilm", "wordpiece")
    assert declared("a", "minilm") == ("minilm", "wordpiece"), "b still reads it"
    first, second = declared("a", "owner/one"), declared("c", "owner/two")
    assert second == (*first, "owner/two")
    assert declared("a", "owner/one") == second, "in another order all texts would be tokenised again"


def test_a_declaration_that_is_refused_changes_nothing(bare: Workspace) -> None:
    with pytest.raises(ConfigError):
        bare.params.declare_experiment("toy", "ngame", "ngame", {"encoder": {"epoch": 1}})
    with pytest.raises(MissingError, match="no dataset 'absent'"):
        bare.params.declare_experiment("absent", "ngame", "ngame", {})
    assert (bare.root / "params.yaml").read_text() == PARAMS


DECLARE = """
import sys
from pathlib import Path
from xc_core.data.ingest import IngestConfig
from xc_core.chain import Workspace
for number in range(5):
    Workspace(Path(sys.argv[1])).params.declare_dataset(f"set-{sys.argv[2]}-{number}", IngestConfig())
"""


def test_declarations_at_the_same_time_lose_nothing(bare: Workspace) -> None:
    command = [sys.executable, "-c", DECLARE, str(bare.root)]
    running = [subprocess.Popen([*command, str(i)]) for i in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert len(bare.params.datasets()) == 1 + 4 * 5
    assert sorted(path.name for path in bare.root.iterdir()) == [".xc", "params.yaml"]


def test_an_edit_of_a_file_that_is_wrong_is_refused_with_the_reason(bare: Workspace) -> None:
    write(bare, "datasets: [toy]\n")
    with pytest.raises(ConfigError, match="datasets = "):
        bare.params.declare_dataset("second", IngestConfig())
    (bare.root / "params.yaml").unlink()
    with pytest.raises(MissingError, match=r"no .*params\.yaml"):
        bare.params.declare_dataset("second", IngestConfig())


# what DVC compares for a dataset or recipe

PROJECT = Path(artifacts.__file__).parents[1]


def test_the_source_is_the_file_of_resolved_settings_inside_the_project_and_the_pins_elsewhere(
    bare: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source_of("ngame", PROJECT) == "xc_core/recipes/resolved/ngame.yaml"
    assert source_of("dataset", PROJECT) == "xc_core/recipes/resolved/dataset.yaml"
    assert source_of("ngame", bare.root) == "constraints.txt"
    monkeypatch.setattr(sys, "prefix", str(PROJECT / "xc_core"))
    assert source_of("ngame", PROJECT) == "constraints.txt", "an environment may lie inside the project"


@pytest.mark.parametrize("module", ["__main__", "no_such_package.recipes", "pytest"])
def test_the_source_of_a_recipe_of_another_package_is_the_pins(module: str) -> None:
    own = find_recipe("ngame")
    stray = own.variant("stray", "a paper", module, {})
    for root in (PROJECT, Path(sys.prefix).parent):
        assert params_file._source(stray, "stray", root) == "constraints.txt"
    assert params_file._source(own, "ngame", PROJECT) == source_of("ngame", PROJECT)


def test_a_declaration_names_the_source_of_its_base(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params_file, "source_of", lambda name, root: f"{root.name}/{name}.yaml")
    bare.params.declare_experiment("toy", "short", "astra", {"encoder": {"epochs": 1}})
    bare.params.declare_dataset("toy", IngestConfig())
    content = bare.params.read()
    assert content["experiments"]["toy_short"]["source"] == f"{bare.root.name}/astra.yaml"
    assert content["datasets"]["toy"]["source"] == f"{bare.root.name}/dataset.yaml"
