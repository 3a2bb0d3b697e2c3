"""Names of datasets and recipes, and the folders they lead to: never out of the data folder."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chain.conftest import PARAMS
from xc_core.chain import STAGES, Workspace
from xc_core.chain.names import checked_name
from xc_core.chain.workspace import at_rest, working
from xc_core.data.ingest import IngestConfig
from xc_core.data.tokens import store_name
from xc_core.errors import MissingError, UsageError, XCError

GOOD = ["a", "7", "wordnet-mini", "ngame-bag", "lf-amazontitles-131k", "a" * 64]
BAD = ["", "A", "a_b", "-a", "a-", ".", "..", "a..b", "a/b", "/etc", "../x", "a b", "ä", "a\n", "a" * 65, "~", "a\0b"]
BAD += ["raw", "inbox", "settings", "changes", "acceptance", "ngame-0.5", *STAGES]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_is_accepted(name: str) -> None:
    assert checked_name("dataset", name) == name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_everywhere_a_name_becomes_a_path(name: str, bare: Workspace) -> None:
    calls = [
        lambda: bare.raw(name),
        lambda: bare.folder("corpus", name),
        lambda: bare.folder("encoder", "toy", name),
        lambda: bare.params.dataset(name),
        lambda: bare.params.partition(name, "ngame"),
        lambda: bare.params.experiment("toy", name),
        lambda: bare.params.declare_dataset(name, IngestConfig()),
        lambda: bare.params.declare_experiment("toy", name, "ngame", {}),
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


def test_a_file_in_the_place_of_the_raw_folder_is_none(bare: Workspace) -> None:
    bare.home("toy").mkdir(parents=True)
    bare.raw("toy").touch()
    with pytest.raises(MissingError, match="no folder"):
        bare.present_raw("toy")


def test_folders_and_scratch_files_lie_where_the_layout_says(bare: Workspace) -> None:
    assert bare.folder("tokens", "toy", "ngame") == bare.root / "data/toy/tokens"
    assert bare.folder("scores", "toy", "ngame") == bare.root / "data/toy/ngame/scores"
    assert bare.raw("toy") == bare.root / "data/toy/raw"
    assert bare.scratch("lock", "scores", "toy", "ngame") == bare.root / ".xc/lock/scores@toy_ngame"
    assert bare.scratch("cost", "corpus", "toy", "ngame") == bare.root / ".xc/cost/corpus@toy"
    tokens, scores = (bare.settings_file(name, "toy", "ngame") for name in ("tokens", "scores"))
    assert tokens == bare.root / "data/toy/settings/tokens.json"
    assert scores == bare.root / "data/toy/ngame/settings/scores.json"
    for place in (bare.folder, bare.settings_file):
        with pytest.raises(UsageError, match="no recipe for scores"):
            place("scores", "toy")


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


@pytest.mark.parametrize("wrong", ["a file", "no folder", "no project"])
def test_an_environment_that_names_no_project_is_refused_and_nothing_is_written(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named"
    if wrong == "a file":
        named.write_text("")
    elif wrong == "no project":
        named.mkdir()
    monkeypatch.setenv("XC_ROOT", str(named))
    said = "which is a file" if wrong == "a file" else "the folder that XC_ROOT names"
    with pytest.raises(MissingError, match=rf"found no params\.yaml in {named}, {said}"):
        Workspace.find()
    assert [*tmp_path.rglob("*")] == [named] * (wrong != "no folder")


# names of token stores


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


def test_a_stage_waits_for_a_command_that_asks_for_a_moment_who_makes_artefacts(bare: Workspace) -> None:
    """It ended with 75 if it started in that moment."""
    entered = []

    def start() -> None:
        with working(bare, "toy"):
            entered.append(time.monotonic())

    stage = Thread(target=start)
    with at_rest(bare, "toy"):
        stage.start()
        time.sleep(0.1)
        left = time.monotonic()
    stage.join()
    assert left <= entered[0]
