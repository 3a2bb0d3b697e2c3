"""Where things lie: names stay inside the data folder, params.yaml is checked and edited without losing anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from xc_core import artifacts
from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError, MissingError, UsageError, XCError
from xc_core.recipes import find_recipe
from xc_core.stages import STAGES, Workspace
from xc_core.stages.workspace import checked_name, resolve, source_of, store_name

PARAMS = """\
# What the chain works on.
datasets:
  # the first one
  toy:
    corpus: {validation_fraction: 0.2}  # a fifth
    tokens: {}

# <dataset>_<recipe>: settings.
experiments:
  # the paper's
  toy_ngame:
    dataset: toy
    recipe: ngame
    base: ngame
    stages:
      encoder:
        epochs: 2  # a try
# the end
"""


def write(workspace: Workspace, text: str) -> Workspace:
    (workspace.root / "params.yaml").write_text(text)
    return workspace


@pytest.fixture
def bare(tmp_path: Path) -> Workspace:
    return write(Workspace(tmp_path), PARAMS)


# names

GOOD = ["a", "7", "wordnet-mini", "ngame-bag", "lf-amazontitles-131k", "a" * 64]
BAD = ["", "A", "a_b", "-a", "a-", ".", "..", "a..b", "a/b", "/etc", "../x", "a b", "ä", "a\n", "a" * 65, "~", "a\0b"]
BAD += ["raw", "inbox", "ngame-0.5", *STAGES]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_is_taken(name: str) -> None:
    assert checked_name("dataset", name) == name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_everywhere_a_name_becomes_a_path(name: str, bare: Workspace) -> None:
    calls = [
        lambda: bare.raw(name),
        lambda: bare.folder("corpus", name),
        lambda: bare.folder("encoder", "toy", name),
        lambda: bare.experiment(name, None),
        lambda: bare.experiment("toy", name),
        lambda: bare.declare_dataset(name, IngestConfig()),
        lambda: bare.declare_experiment("toy", name, "ngame", {}),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="choose another name"):
            call()
    assert (bare.root / "params.yaml").read_text() == PARAMS


@given(st.text(max_size=12))
@settings(deadline=None, max_examples=200)
def test_no_name_leads_out_of_the_data_folder(name: str) -> None:
    workspace = Workspace(Path("/project"))
    try:
        folder = workspace.folder("encoder", name, name)
    except XCError:
        return
    assert folder.parents[2] == Path("/project/data")
    assert folder.name == "encoder"


def test_folders_and_scratch_files_lie_where_the_layout_says(bare: Workspace) -> None:
    assert bare.folder("tokens", "toy", "ngame") == bare.root / "data/toy/tokens"
    assert bare.folder("index", "toy", "ngame") == bare.root / "data/toy/ngame/index"
    assert bare.scratch("lock", STAGES["index"], "toy", "ngame") == bare.root / ".xc/lock/index@toy_ngame"
    assert bare.scratch("cost", STAGES["corpus"], "toy", "ngame") == bare.root / ".xc/cost/corpus@toy"
    with pytest.raises(UsageError, match="no recipe for index"):
        bare.folder("index", "toy")


def test_the_project_is_found_from_below_or_by_the_environment(
    bare: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XC_ROOT", raising=False)
    (bare.root / "a" / "b").mkdir(parents=True)
    assert Workspace.find(bare.root / "a" / "b").root == bare.root
    monkeypatch.setenv("XC_ROOT", str(bare.root))
    assert Workspace.find(Path("/")).root == bare.root
    monkeypatch.delenv("XC_ROOT")
    with pytest.raises(MissingError, match=r"no params\.yaml in / or above it"):
        Workspace.find(Path("/"))


# reading params.yaml


def test_an_experiment_is_the_recipe_with_its_changes(bare: Workspace) -> None:
    found = bare.experiment("toy", "ngame")
    assert found.recipe == find_recipe("ngame").changed({"encoder": {"epochs": 2}})
    assert found.corpus == IngestConfig(validation_fraction=0.2)
    assert found.config("encoder").epochs == 2.0
    assert found.config("corpus").validation_fraction == 0.2
    assert found.config("leaderboard") is None
    assert (found.key, bare.experiment("toy", None).key) == ("toy_ngame", "toy")


def test_a_variant_is_another_recipe_under_its_own_name(bare: Workspace) -> None:
    found = bare.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"epochs": 1}}).recipe
    assert found is not None
    assert (found.name, found.encoder.epochs, found.module) == ("ngame-short", 1.0, "xc_core.recipes.ngame")
    assert bare.experiments("toy") == [("toy", "ngame"), ("toy", "ngame-short")]


@pytest.mark.parametrize(
    ("dataset", "recipe", "found", "do"),
    [
        ("tay", "ngame", "no dataset 'tay' in params.yaml (nearest: 'toy')", "xc ingest PATH --dataset tay"),
        ("toy", "ngames", "no experiment 'toy_ngames' in params.yaml (nearest: 'toy_ngame')",
         "xc train --dataset toy --recipe ngames, with --base KNOWN for a variant"),
    ],
)  # fmt: skip
def test_what_is_not_in_params_is_missing_and_told_how_to_make(
    dataset: str, recipe: str, found: str, do: str, bare: Workspace
) -> None:
    with pytest.raises(MissingError) as caught:
        bare.experiment(dataset, recipe)
    assert caught.value.found == found
    assert caught.value.do == f"make it: {do}"


WRONG = {
    "no YAML": ("datasets: [", "no YAML"),
    "a tab": ("datasets:\n\ttoy: {}\n", "no YAML"),
    "a list": ("- a\n", "a list"),
    "datasets a list": ("datasets: [toy]\n", "datasets = ['toy']"),
    "a dataset's name a number": ("datasets: {7: {}}\n", "datasets.7"),
    "a dataset a text": ("datasets: {toy: yes please}\n", "datasets.toy = 'yes please'"),
    "a misspelt part": ("datasets: {toy: {corpos: {}}}\n", "datasets.toy.corpos (nearest: 'corpus')"),
    "an unknown setting": ("datasets: {toy: {corpus: {filter: none}}}\n", "corpus.filter (nearest: 'filters')"),
    "a setting of the wrong type": ("datasets: {toy: {tokens: {max_tokens: many}}}\n", "tokens.max_tokens = 'many'"),
    "a setting that is no mapping": ("datasets: {toy: {corpus: 7}}\n", "datasets.toy.corpus = 7"),
    "an experiment without names": ("datasets: {toy: }\nexperiments: {toy_ngame: {base: ngame}}\n", "toy_ngame with"),
    "an experiment of another name": (
        "datasets: {toy: }\nexperiments: {toy_x: {dataset: toy, recipe: ngame}}\n", "toy_x with dataset 'toy'"),
    "an unknown stage": (
        "datasets: {toy: }\nexperiments: {toy_ngame: {dataset: toy, recipe: ngame, stages: {encodr: {}}}}\n",
        "ngame.encodr (nearest: 'encoder')"),
    "an unknown base": (
        "datasets: {toy: }\nexperiments: {toy_ngame: {dataset: toy, recipe: ngame, base: game}}\n",
        "recipe 'game' (nearest: 'ngame')"),
    "a value out of range": (
        "datasets: {toy: }\nexperiments: {toy_ngame: {dataset: toy, recipe: ngame, stages: {clusters: {size: 0}}}}\n",
        "size 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_params_file_is_a_config_error_that_names_the_place(name: str, bare: Workspace) -> None:
    text, found = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        write(bare, text).experiment("toy", "ngame")
    assert found in caught.value.found
    assert caught.value.exit_code == 78


def test_bytes_that_are_no_text_are_a_config_error(bare: Workspace) -> None:
    (bare.root / "params.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no YAML"):
        bare.params()


def test_an_empty_params_file_has_no_datasets(bare: Workspace) -> None:
    for text in ("", "datasets:\nexperiments:\n"):
        write(bare, text)
        assert bare.datasets() == []
        assert bare.experiments() == []


# editing params.yaml


def test_comments_survive_a_declaration(bare: Workspace) -> None:
    bare.declare_dataset("toy", IngestConfig(validation_fraction=0.3))
    bare.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"epochs": 1}})
    text = (bare.root / "params.yaml").read_text()
    for comment in ("# What the chain works on.", "# the first one", "# <dataset>_<recipe>: settings.",
                    "# the paper's", "# a try", "# the end"):  # fmt: skip
        assert comment in text
    assert bare.experiment("toy", "ngame").corpus.validation_fraction == 0.3


def test_a_comment_stays_above_what_it_is_about(bare: Workspace) -> None:
    bare.declare_dataset("second", IngestConfig())
    lines = (bare.root / "params.yaml").read_text().splitlines()
    assert lines[lines.index("# <dataset>_<recipe>: settings.") + 1] == "experiments:"
    assert lines.index("  second:") < lines.index("# <dataset>_<recipe>: settings.")


def test_the_same_declaration_twice_leaves_the_file_alone(bare: Workspace) -> None:
    bare.declare_dataset("second", IngestConfig(filters="none"))
    bare.declare_experiment("second", "ngame", "ngame", {"encoder": {"epochs": 1}})
    before = (bare.root / "params.yaml").stat().st_mtime_ns, (bare.root / "params.yaml").read_bytes()
    bare.declare_dataset("second", IngestConfig(filters="none"))
    bare.declare_experiment("second", "ngame", "ngame", {"encoder": {"epochs": 1}})
    assert before == ((bare.root / "params.yaml").stat().st_mtime_ns, (bare.root / "params.yaml").read_bytes())


@pytest.mark.parametrize(
    "text", ["", "datasets:\nexperiments:\n", "datasets: {}\nexperiments: {}\n", "datasets:\n  toy:\n"]
)
def test_declarations_fill_what_is_empty_over_several_lines(text: str, bare: Workspace) -> None:
    write(bare, text)
    bare.declare_dataset("toy", IngestConfig(filters="none"))
    found = bare.declare_experiment("toy", "ngame", "ngame", {"encoder": {"encoder": {"name": "bag"}}})
    assert found.corpus.filters == "none"
    assert found.tokens.tokenizers == ("minilm", "wordpiece")
    assert max(map(len, (bare.root / "params.yaml").read_text().splitlines())) < 60


def test_a_declaration_brings_in_its_tokenizer_once(bare: Workspace) -> None:
    for name in ("ngame-a", "ngame-b"):
        bare.declare_experiment("toy", name, "ngame", {"encoder": {"encoder": {"name": "bag"}}})
    content = YAML(typ="safe").load((bare.root / "params.yaml").read_text())
    assert content["datasets"]["toy"]["tokens"] == {"tokenizers": ["minilm", "wordpiece"]}
    entry = content["experiments"]["toy_ngame-a"]
    assert (entry["tokens"], entry["base"]) == ("wordpiece", "ngame")
    assert set(entry["stages"]) == set(find_recipe("ngame").stages()), "DVC asks for every stage's key"


def test_a_tokenizer_that_its_one_experiment_gave_up_goes(bare: Workspace) -> None:
    def declared(recipe: str, name: str) -> tuple[str, ...]:
        return bare.declare_experiment(
            "toy", recipe, "ngame", {"encoder": {"encoder": {"name": name}}}
        ).tokens.tokenizers

    assert declared("a", "owner/mistyped") == ("minilm", "owner/mistyped")
    assert declared("a", "bag") == ("minilm", "wordpiece")
    assert declared("b", "bag") == ("minilm", "wordpiece")
    assert declared("a", "minilm") == ("minilm", "wordpiece"), "b still reads it"


def test_a_declaration_that_is_refused_changes_nothing(bare: Workspace) -> None:
    with pytest.raises(ConfigError):
        bare.declare_experiment("toy", "ngame", "ngame", {"encoder": {"epoch": 1}})
    with pytest.raises(MissingError, match="no dataset 'absent'"):
        bare.declare_experiment("absent", "ngame", "ngame", {})
    assert (bare.root / "params.yaml").read_text() == PARAMS


DECLARE = """
import sys
from pathlib import Path
from xc_core.data.ingest import IngestConfig
from xc_core.stages import Workspace
for number in range(5):
    Workspace(Path(sys.argv[1])).declare_dataset(f"set-{sys.argv[2]}-{number}", IngestConfig())
"""


def test_declarations_at_the_same_time_lose_nothing(bare: Workspace) -> None:
    command = [sys.executable, "-c", DECLARE, str(bare.root)]
    running = [subprocess.Popen([*command, str(i)]) for i in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert len(bare.datasets()) == 1 + 4 * 5
    assert sorted(path.name for path in bare.root.iterdir()) == [".xc", "params.yaml"]


def test_an_edit_of_a_file_that_is_wrong_is_refused_with_the_reason(bare: Workspace) -> None:
    write(bare, "datasets: [toy]\n")
    with pytest.raises(ConfigError, match="datasets = "):
        bare.declare_dataset("second", IngestConfig())
    (bare.root / "params.yaml").unlink()
    with pytest.raises(MissingError, match=r"no .*params\.yaml"):
        bare.declare_dataset("second", IngestConfig())


# names of stores and sources


@pytest.mark.parametrize("name", ["minilm", "wordpiece", "distilbert-base-uncased"])
def test_a_plain_tokenizer_name_is_its_folders_name(name: str) -> None:
    assert store_name(name) == name


@pytest.mark.parametrize("name", ["/models/tiny", "../tiny", "owner/model", ".hidden", "a b", "..", "~/x", "ü/ü"])
def test_a_path_or_hub_name_becomes_a_safe_folder_name(name: str) -> None:
    made = store_name(name)
    assert "/" not in made and not made.startswith(".") and made not in (".", "..")
    assert made.isascii() and " " not in made


def test_two_tokenizers_never_share_a_folder() -> None:
    names = ["owner/model", "owner-model", "owner.model", "owner/model/", "owner model"]
    assert len({store_name(name) for name in names}) == len(names)


def test_the_source_of_a_recipe_is_its_file_inside_the_project_and_the_pins_elsewhere(
    bare: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = find_recipe("ngame")
    project = Path(artifacts.__file__).parents[1]
    assert source_of(recipe, project) == "xc_core/recipes/ngame.py"
    assert source_of(recipe, bare.root) == "constraints.txt"
    for module in ("__main__", "no_such_package.recipes", "pytest"):
        stray = resolve("ngame", "ngame", {})
        object.__setattr__(stray, "module", module)
        for root in (project, Path(sys.prefix).parent):  # an environment may lie inside the project
            assert source_of(stray, root) == "constraints.txt"
