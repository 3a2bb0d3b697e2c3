"""``xc promote``, ``xc rollback``, and what ``xc predict`` and ``xc doctor`` need from MLflow."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
from mlflow.utils.file_utils import local_file_uri_to_path

from assets import database
from assets.release import aliases, champions, health, promotion
from assets.release import candidate as candidates
from assets.release.ancestry import read
from assets.release.judge import acceptance_folder
from assets.release.origin import ARTEFACTS, FOLDER
from assets.release.registry import Released
from assets.release.versions import AROUND, digest_around
from assets.resources import Dvc
from tests.assets.conftest import Registry, Store, champion_files
from tests.cli.conftest import Xc, entry, offered
from tests.conftest import TOY_CHANGES
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.cli.champions import source_of
from xc_core.data.ingest import IngestConfig
from xc_core.errors import BusyError, ConfigError, CorruptError
from xc_core.manifests import read_manifest
from xc_core.params import deep_merged
from xc_core.serve.models import Models

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = [pytest.mark.chain, pytest.mark.filterwarnings("ignore")]

BAD = {"encoder": {"epochs": 0.1}, "classifier": {"epochs": 0.1, "refit": False}}
UNREACHABLE = "http://127.0.0.1:9"
"""Port 9 (discard) of this machine, where nothing listens."""


@pytest.fixture
def no_server(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The same with a tracking server that does not answer."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", UNREACHABLE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return project


@pytest.fixture
def declared(versions: Registry, fresh: Workspace) -> Registry:
    """Registered versions of a dataset that params.yaml knows."""
    fresh.params.declare_dataset(versions.dataset, IngestConfig())
    return versions


def pointed(store: Store) -> dict[str, int]:
    """Return the version of each alias of xc-toy."""
    found = store.client.get_registered_model("xc-toy").aliases
    return {alias: int(version) for alias, version in found.items()}


def test_promote_without_a_name_makes_the_challenger_champion(xc: Xc, declared: Registry) -> None:
    declared.release(declared.version())
    declared.release(declared.version(), auto=False)
    assert declared.aliases()["champion"] == 1
    promoted = xc("promote", "--dataset", declared.dataset)
    assert (promoted.code, promoted.out) == (0, f"models:/xc-{declared.dataset}@champion is version 2\n")
    assert promoted.err == "note: the gate judged it on 40 documents\n"
    assert declared.aliases() == {"champion": 2, "challenger": 2, "previous": 1}
    assert "promoted_by" in declared.client.get_model_version(declared.name, "2").tags


def test_the_champion_is_changed_by_one_process_at_a_time(
    xc: Xc, declared: Registry, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        declared.release(declared.version())
    monkeypatch.setattr(candidates, "_PATIENCE", 0.1)
    with candidates.moving(fresh, declared.dataset):
        for asked in (("rollback",), ("promote", "--version", 1)):
            ended = xc(asked[0], "--dataset", declared.dataset, *asked[1:])
            ended.refused(75, f"a change of the champion of {declared.dataset}, which process")
    assert declared.aliases()["champion"] == 2
    for number in ("1", "2"):
        tags = declared.client.get_model_version(declared.name, number).tags
        assert not {aliases.ROLLED_BACK, "promoted_by"} & set(tags), "nothing was changed"
    assert xc("rollback", "--dataset", declared.dataset).code == 0


@pytest.mark.parametrize("reason", [(), ("--reason", "known")], ids=["gate", "reason"])
def test_the_model_of_a_recipe_is_judged_again_if_another_one_became_champion_after_its_verdict(
    xc: Xc, declared: Registry, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, reason: tuple[str, ...]
) -> None:
    """To open the model before it is promoted takes seconds; so does a verdict to be recorded."""
    declared.release(declared.version())
    other, own = declared.version(), declared.version()

    @contextmanager
    def moving(*_: object) -> Iterator[None]:
        if len(declared.asked) == 2:
            aliases.set_champion(declared.client, declared.name, other)
        yield

    monkeypatch.setattr(candidates, "moving", moving)
    monkeypatch.setattr(candidates, "candidate", lambda *_: declared.candidate(own))
    monkeypatch.setattr(candidates, "check_up_to_date", lambda *_: None)
    monkeypatch.setattr(promotion, "record", lambda *_: None)
    fresh.params.declare_experiment(declared.dataset, "ngame", "ngame", {})
    assert xc("promote", "--dataset", declared.dataset, "--recipe", "ngame", *reason).code == 0
    compared = [None, 1, *([] if reason else [other])]
    assert declared.asked == compared, "the version of each champion that the gate compared a model with"
    assert declared.aliases() == {"champion": own, "challenger": own, "previous": other}


def test_a_candidate_brings_the_locks_of_its_project(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Dagster as on the command line."""
    monkeypatch.setattr(candidates, "_PATIENCE", 0.1)
    monkeypatch.setattr(candidates, "_COPY_PATIENCE", 0.1)
    own = candidates.candidate(project, "toy", "ngame")
    with (
        candidates.registering(project, "toy"),
        pytest.raises(BusyError, match="a registration of a model of toy"),
        own.registering(),
    ):
        raise AssertionError("nothing may begin")
    with (
        candidates.moving(project, "toy"),
        pytest.raises(BusyError, match="a change of the champion of toy"),
        own.moving(),
    ):
        raise AssertionError("nothing may begin")


def test_promote_without_a_challenger_is_refused(xc: Xc, declared: Registry) -> None:
    declared.version()
    do = f"register one: xc promote --dataset {declared.dataset} --recipe NAME"
    xc("promote", "--dataset", declared.dataset).refused(66, f"no challenger of xc-{declared.dataset}", do)


def test_artefacts_in_git_are_reported_before_anything_is_registered(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dvc refuses them, but only after the model is registered; MLflow is not even asked."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", UNREACHABLE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    fresh.params.declare_dataset("toy", IngestConfig())
    fresh.params.declare_experiment("toy", "ngame", "ngame", {})
    folder = fresh.folder("encoder", "toy", "ngame")
    for path in (folder, fresh.root / ".dvc"):
        path.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text("{}")
    subprocess.run(["git", "init", "-q"], cwd=fresh.root, check=True)
    subprocess.run(["git", "add", "-f", "data"], cwd=fresh.root, check=True)
    asked = xc("promote", "--dataset", "toy", "--recipe", "ngame")
    asked.refused(
        78,
        "artefacts that git tracks: data/toy/ngame/encoder/manifest.json",
        "git rm -r --cached --quiet data/toy/ngame/encoder",
    )


def test_what_the_gate_refused_needs_a_reason(xc: Xc, declared: Registry) -> None:
    declared.release(declared.version())
    declared.release(declared.version(), passes=False)
    asked = ("promote", "--dataset", declared.dataset, "--version", 2)
    xc(*asked).refused(77, "version 2, which the gate refused (P@5)", '--version 2 --reason "WHY"')
    xc(*asked, "--reason", " ").refused(64, "an empty --reason")
    assert declared.aliases() == {"champion": 1, "challenger": 1}
    assert xc(*asked, "--reason", "the labels <b>changed</b>").code == 0
    assert declared.aliases() == {"champion": 2, "challenger": 1, "previous": 1}
    version = declared.client.get_model_version(declared.name, "2")
    assert version.tags["overruled_because"] == "the labels <b>changed</b>"
    assert version.tags["promoted_by"] and version.tags["promoted_at"]
    assert "the labels &#60;b&#62;changed&#60;/b&#62;" in version.description


def test_the_reason_stays_on_the_page_of_a_model_that_is_registered_again(xc: Xc, declared: Registry) -> None:
    declared.release(declared.version())
    declared.release(declared.version(), passes=False)
    assert xc("promote", "--dataset", declared.dataset, "--version", 2, "--reason", "new labels").code == 0
    assert xc("rollback", "--dataset", declared.dataset).code == 0
    declared.release(2, passes=False)
    page = declared.client.get_model_version(declared.name, "2").description
    assert "**Gate**: 40 documents" in page
    assert "**Promoted by hand** by " in page and page.endswith(": new labels")


def test_the_page_of_a_version_shows_the_last_reason_as_its_tags_do(xc: Xc, declared: Registry) -> None:
    """Also if the earlier one is at the end of the page, where a registration puts it."""
    declared.release(declared.version())
    declared.release(declared.version(), passes=False)
    asked = ("promote", "--dataset", declared.dataset, "--version", 2, "--reason")
    for reason in ("new labels", "old texts"):
        assert xc(*asked, reason).code == 0
    declared.release(declared.version())  # so that version 2 is registered again
    declared.release(2, passes=False)
    assert xc(*asked, "the last").code == 0
    version = declared.client.get_model_version(declared.name, "2")
    assert version.tags["overruled_because"] == "the last"
    page = version.description
    assert page.startswith("**Promoted by hand** by ") and page.partition("\n")[0].endswith(": the last")
    assert page.count("Promoted by hand") == 1 and "**Gate**: 40 documents" in page


def test_a_reason_keeps_the_name_of_the_person_who_gave_it(
    xc: Xc, declared: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared.release(declared.version())
    declared.release(declared.version(), passes=False)
    monkeypatch.setattr("assets.release.origin.person", lambda root: "Ada")
    assert xc("promote", "--dataset", declared.dataset, "--version", 2, "--reason", "new labels").code == 0
    assert xc("rollback", "--dataset", declared.dataset).code == 0
    monkeypatch.setattr("assets.release.origin.person", lambda root: "Ben")
    assert xc("promote", "--dataset", declared.dataset, "--version", 2).code == 0
    declared.release(2, passes=False)
    version = declared.client.get_model_version(declared.name, "2")
    assert (version.tags["promoted_by"], version.tags["overruled_by"]) == ("Ben", "Ada")
    assert "**Promoted by hand** by Ada" in version.description and "Ben" not in version.description


def test_a_version_that_the_gate_has_not_seen_needs_a_reason(xc: Xc, declared: Registry) -> None:
    """As after a kill between registration and verdict, where only the reason was advised."""
    declared.version()
    declared.client.set_model_version_tag(declared.name, "1", "recipe", "ngame")
    do = f"ask the gate: xc promote --dataset {declared.dataset} --recipe ngame; or overrule it: xc promote"
    asked = ("promote", "--dataset", declared.dataset, "--version")
    xc(*asked, 1).refused(77, "version 1, which the gate has not seen", do)
    declared.release(declared.version(), passes=False)
    assert "ask the gate" not in xc(*asked, 2).err


def test_a_former_champion_needs_no_reason(xc: Xc, declared: Registry) -> None:
    """A version of an older release has no tag of the gate."""
    for number in (declared.version(), declared.version()):
        aliases.set_champion(declared.client, declared.name, number)
    assert xc("promote", "--dataset", declared.dataset, "--version", 1).code == 0
    assert declared.aliases() == {"champion": 1, "previous": 2}


def test_a_promotion_records_raw_data_and_acceptance_set_in_dvc(
    released: Released, xc: Xc, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the set nobody else could judge a model on the same documents."""
    recorded: list[Path] = []
    monkeypatch.setattr(Dvc, "track_source", lambda _, source: recorded.append(source))
    assert xc("promote", "--dataset", "toy", "--recipe", "ngame").code == 0
    assert recorded == [project.raw("toy"), acceptance_folder(project, "toy")]


def test_a_recipe_that_the_gate_refuses_leaves_the_champion(
    released: Released, xc: Xc, own: Workspace, store: Store
) -> None:
    """Another model of the dataset, with one epoch of everything, cannot be as good; nothing is registered twice."""
    before = pointed(store)
    own.params.declare_experiment("toy", "bad", "ngame", deep_merged(TOY_CHANGES, BAD))
    for stage in STAGES:
        if stage != "leaderboard":
            run_stage(own, stage, "toy", "bad")
    refused = xc("promote", "--dataset", "toy", "--recipe", "bad")
    own_words = replace(refused, err=refused.err[refused.err.index("xc: ") :])  # after those of MLflow
    own_words.refused(77, "refused by the gate: P@5", '--reason "WHY"')
    assert pointed(store) == before
    found = max(int(version.version) for version in store.client.search_model_versions("name = 'xc-toy'"))
    store.client.delete_model_version("xc-toy", str(found))


@pytest.fixture
def second(released: Released, project: Workspace, store: Store) -> Iterator[int]:
    """A second version of xc-toy, without files; at the end version 1 is champion again and the only one."""
    first = store.client.get_model_version("xc-toy", "1")
    number = int(store.client.create_model_version("xc-toy", "nowhere").version)
    store.client.set_model_version_tag("xc-toy", str(number), "bundle", first.tags["bundle"])
    yield number
    only_the_first(store)


def only_the_first(store: Store) -> None:
    aliases.set_champion(store.client, "xc-toy", 1)
    store.client.set_registered_model_alias("xc-toy", aliases.CHALLENGER, "1")
    store.client.delete_registered_model_alias("xc-toy", aliases.PREVIOUS)
    for version in store.client.search_model_versions("name = 'xc-toy'"):
        if int(version.version) != 1:
            store.client.delete_model_version("xc-toy", version.version)


def test_promote_and_rollback_move_the_champion_that_predict_uses(
    xc: Xc, second: int, store: Store, project: Workspace
) -> None:
    pointer = project.state / "champions" / "toy.json"
    source = store.client.get_model_version("xc-toy", "1").source
    copy = store.client.create_model_version("xc-toy", source).version
    assert xc("promote", "--dataset", "toy", "--version", copy, "--reason", "a test").out == (
        f"models:/xc-toy@champion is version {copy}\n"
    )
    assert json.loads(pointer.read_text())["version"] == int(copy), "the next prediction asks no MLflow"
    assert xc("rollback", "--dataset", "toy").out == (
        f"models:/xc-toy@champion is version 1 again (instead of {copy})\n"
    )
    assert json.loads(pointer.read_text())["version"] == 1
    assert json.loads(xc("predict", "--dataset", "toy", "--json", "falcon").out)[0]["title"] == "falcon"
    aliases.set_champion(store.client, "xc-toy", second)
    asked = ("promote", "--dataset", "toy", "--recipe", "ngame")
    refused = xc(*asked)
    assert refused.code == 77 and "cannot be compared: no files of xc-toy" in refused.err
    assert f"do this:  xc promote --dataset toy --version {second} --repair. To overrule the gate: " in refused.err
    assert xc(*asked, "--reason", "its files are gone").out == "models:/xc-toy@champion is version 1\n"


def test_a_version_whose_files_are_gone_never_becomes_champion(xc: Xc, second: int, store: Store) -> None:
    asked, do = ("promote", "--dataset", "toy"), f"xc promote --dataset toy --version {second} --repair; the champion"
    xc(*asked, "--version", second, "--reason", "new labels").refused(66, f"no files of xc-toy version {second}", do)
    assert pointed(store) == {"champion": 1, "challenger": 1}
    assert "promoted_by" not in store.client.get_model_version("xc-toy", str(second)).tags, "nothing was recorded"
    store.client.set_registered_model_alias("xc-toy", aliases.PREVIOUS, str(second))
    xc("rollback", "--dataset", "toy").refused(66, f"no files of xc-toy version {second}", do)
    assert pointed(store) == {"champion": 1, "challenger": 1, "previous": second}


def test_a_previous_champion_is_repaired_in_its_place(xc: Xc, second: int, store: Store) -> None:
    """It has the content of the packed model, as its tag says."""
    store.client.set_registered_model_alias("xc-toy", aliases.PREVIOUS, str(second))
    ended = xc("promote", "--dataset", "toy", "--version", second, "--repair")
    assert ended.code == 0, ended.err
    new = pointed(store)["previous"]
    assert ended.out == f"version {new} of xc-toy replaces version {second}, with the same content\n"
    assert pointed(store) == {"champion": 1, "challenger": 1, "previous": new} and new != second
    assert xc("rollback", "--dataset", "toy").code == 0
    assert json.loads(xc("predict", "--dataset", "toy", "--json", "falcon").out)[0]["title"] == "falcon"
    xc("promote", "--dataset", "toy", "--version", 99, "--repair").refused(66, "no version 99 of xc-toy")
    both = ("promote", "--dataset", "toy", "--recipe", "ngame", "--repair")
    xc(*both).refused(64, "--repair with --recipe or --reason")


@pytest.mark.parametrize(("spoil", "found"), [(None, "whose content has changed"), (Path.unlink, "no file ")])
def test_a_former_champion_with_damaged_files_does_not_return(
    xc: Xc, second: int, damaged: Path, store: Store, spoil: Callable[[Path], None] | None, found: str
) -> None:
    if spoil is not None:
        spoil(damaged / "encoder.safetensors")
    aliases.set_champion(store.client, "xc-toy", second)
    before = pointed(store)
    for asked in (("rollback", "--dataset", "toy"), ("promote", "--dataset", "toy", "--version", 1)):
        xc(*asked).refused(74, found, "xc promote --dataset toy --version 1 --repair; the champion is unchanged")
        assert pointed(store) == before


def test_a_version_that_holds_another_model_than_registered_is_not_promoted(xc: Xc, second: int, store: Store) -> None:
    source = store.client.get_model_version("xc-toy", "1").source
    other = store.client.create_model_version("xc-toy", source).version
    store.client.set_model_version_tag("xc-toy", other, "bundle", "0" * 64)
    asked = ("promote", "--dataset", "toy", "--version", other, "--reason", "a test")
    xc(*asked).refused(74, f"of xc-toy version {other}", f"xc promote --dataset toy --version {other} --repair")


def test_a_recipe_without_a_packed_model_is_not_promoted(xc: Xc, fresh: Workspace, store: Store) -> None:
    promoted = xc("promote", "--dataset", "toy", "--recipe", "ngame")
    promoted.refused(66, f"no packed model at {fresh.folder('model', 'toy', 'ngame')}", "xc train --dataset toy")


def test_a_model_that_is_out_of_date_is_not_promoted(released: Released, xc: Xc, own: Workspace, store: Store) -> None:
    before = pointed(store)
    own.params.declare_experiment("toy", "ngame", "ngame", {**TOY_CHANGES, "fusion": {"candidates": 5}})
    promoted = xc("promote", "--dataset", "toy", "--recipe", "ngame")
    promoted.refused(76, "a model of toy/ngame that is out of date", "xc train --dataset toy --recipe ngame")
    for stage in ("fusion", "evaluation"):
        run_stage(own, stage, "toy", "ngame")
    promoted = xc("promote", "--dataset", "toy", "--recipe", "ngame")
    promoted.refused(76, "a model of toy/ngame that is out of date", "xc run model --dataset toy --recipe ngame;")
    assert pointed(store) == before


def test_the_lineage_of_a_version_leaves_no_temporary_files(
    released: Released, xc: Xc, own: Workspace, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its origin has params.yaml and what differs from the commit."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    ended = xc("lineage", "1", "--dataset", "toy")
    assert (ended.code, "corpus: " in ended.out) == (0, True), ended.err
    assert list((tmp_path / "temporary").iterdir()) == []


def test_settings_that_change_during_a_promotion_do_not_become_those_of_the_model(
    released: Released, xc: Xc, own: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC works for seconds; meanwhile somebody edits params.yaml, or the data are updated."""
    changes = {**TOY_CHANGES, "fusion": {"candidates": 5}}
    monkeypatch.setattr(
        promotion, "record", lambda *place: own.params.declare_experiment("toy", "ngame", "ngame", changes)
    )
    xc("promote", "--dataset", "toy", "--recipe", "ngame").refused(76, "a model of toy/ngame that is out of date")


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["promote", "--dataset", "toyy"], 66, "no dataset 'toyy' in params.yaml (nearest: 'toy')"),
        (["rollback", "--dataset", "toyy"], 66, "no dataset 'toyy' in params.yaml (nearest: 'toy')"),
        (["promote", "--dataset", "a'b"], 64, 'the dataset name "a\'b"'),
        (["rollback", "--dataset", "../x"], 64, "the dataset name '../x'"),
        (["promote", "--dataset", "toy", "--recipe", "ngme"], 66, "(nearest: 'toy_ngame')"),
        (["promote", "--dataset", "toy", "--recipe", "ngame", "--version", "1"], 64, "both --recipe and --version"),
        (["promote", "--dataset", "toy", "--version", "99"], 66, "no version 99 of xc-toy"),
        (["rollback", "--dataset", "toy"], 66, "no previous champion of xc-toy"),
    ],
)
def test_what_cannot_be_promoted_or_rolled_back_is_refused(
    released: Released,
    xc: Xc,
    project: Workspace,
    arguments: list[str],
    code: int,
    found: str,
) -> None:
    xc(*arguments).refused(code, found)


# xc doctor


def test_doctor_names_the_champion(released: Released, project: Workspace, store: Store) -> None:
    found = [(finding.level, finding.text) for finding in health.check()]
    assert found[:2] == [
        ("ok", f"MLflow answers at {store.uri}"),
        ("ok", "champion of toy: version 1, recipe ngame"),
    ]


@pytest.mark.parametrize(
    "given",
    [{}, {"MLFLOW_TRACKING_URI": "sqlite:///here.db"}, {"MLFLOW_REGISTRY_URI": "sqlite:///here.db"}],
    ids=["own", "tracking", "registry"],
)
def test_doctor_makes_no_database(
    given: dict[str, str], store: Store, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may only read the project could not make one, also if its folder is there, which ``xc predict`` makes."""
    if "MLFLOW_REGISTRY_URI" not in given:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, uri in given.items():
        monkeypatch.setenv(name, uri)
    (fresh.state / "mlflow").mkdir(parents=True)
    (finding,) = health.check()
    missing = fresh.root / "here.db" if given else fresh.state / "mlflow" / "mlflow.db"
    assert (finding.level, finding.text.partition(": ")[0]) == ("note", f"no database of MLflow yet at {missing}")
    assert not missing.exists() and not list((fresh.state / "mlflow").iterdir())


def test_doctor_checks_the_champion_without_a_database_of_runs(
    released: Released, project: Workspace, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that serves: only the registry is shared."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.uri)
    assert [(finding.level, finding.text) for finding in health.check()][:3] == [
        ("note", f"no database of runs yet at {tmp_path / 'runs.db'}: no stage was logged"),
        ("ok", f"MLflow's registry answers at {store.uri}"),
        ("ok", "champion of toy: version 1, recipe ngame"),
    ]
    assert not (tmp_path / "runs.db").exists()


def test_doctor_names_a_path_that_no_database_can_have(
    store: Store, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was all well before the first release, which is refused there."""
    root = fresh.root.rename(fresh.root.with_name("feature%2Fx"))
    monkeypatch.setenv("XC_ROOT", str(root))
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(ConfigError, match=r"(?s)'%2F' in the path .*move or rename the folder"):
        list(health.check())


def test_a_project_that_has_packed_nothing_has_no_champion_and_needs_no_database(
    store: Store, fresh: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{tmp_path / 'new.db'}")
    assert champions.champion(fresh, "toy") is None
    assert not (tmp_path / "new.db").exists()


def test_a_dataset_without_a_champion_has_no_folder_and_a_note(declared: Registry, fresh: Workspace) -> None:
    assert champions.champion(fresh, declared.dataset) is None
    found = [(finding.level, finding.text) for finding in health.check()]
    assert ("note", f"champion of {declared.dataset}: none yet") in found


def test_doctor_names_every_packed_model(releasing: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_ROOT", str(releasing.root))
    digest = read_manifest(releasing.folder("model", "toy", "ngame")).digest()
    assert ("ok", f"packed model of toy/ngame: {digest[:12]}") in [(f.level, f.text) for f in health.check()]


@pytest.fixture
def damaged(project: Workspace, store: Store, released: Released) -> Iterator[Path]:
    """The champion's registered weights, one byte changed; repaired or not, version 1 is champion again at the end."""
    folder = champion_files(store, "toy")
    weights, content = folder / "encoder.safetensors", (folder / "encoder.safetensors").read_bytes()
    weights.write_bytes(content[:-1] + b"x")
    yield folder
    weights.write_bytes(content)
    only_the_first(store)


def test_a_damaged_champion_is_seen_and_repaired(damaged: Path, xc: Xc, store: Store) -> None:
    (fault,) = [finding for finding in health.check() if finding.level == "fault"]
    assert "encoder.safetensors, whose content has changed" in fault.text
    assert "xc promote --dataset toy --repair" in fault.text
    before = store.client.get_model_version("xc-toy", "1")
    ended = xc("promote", "--dataset", "toy", "--repair")
    assert ended.code == 0
    version = aliases.version_of(store.client, "xc-toy", aliases.CHAMPION)
    assert version is not None
    assert ended.out == f"version {version.version} of xc-toy replaces version 1, with the same content\n"
    assert version.tags == {**before.tags, "repairs": "1", AROUND: digest_around(champion_files(store, "toy"))}
    assert version.description == before.description
    assert "previous" not in pointed(store), "the damaged version cannot be rolled back to"
    assert json.loads(xc("predict", "--dataset", "toy", "--json", "falcon").out)[0]["title"] == "falcon"
    assert xc("promote", "--dataset", "toy", "--repair").out == f"version {version.version} of xc-toy is whole\n"


def test_a_damaged_file_around_the_packed_model_is_seen_and_repaired(
    released: Released, project: Workspace, store: Store, xc: Xc
) -> None:
    """The code and the settings that MLflow serves the model with; its weights are whole."""
    home = champion_files(store, "toy").parents[1]
    for name in ("serving.py", "code/xc_core/errors.py", "requirements.txt", "MLmodel"):
        content = (home / name).read_bytes()
        for wrong in (b"\x93\xf1\x00", content + b"\n", None):
            try:
                (home / name).unlink() if wrong is None else (home / name).write_bytes(wrong)
                (fault,) = [finding.text for finding in health.check() if finding.level == "fault"]
                assert "xc promote --dataset toy --repair" in fault, (name, wrong)
            finally:
                (home / name).write_bytes(content)
    code = (home / "serving.py").read_bytes()
    (home / "serving.py").write_bytes(b"\x93\xf1\x00")
    try:
        asked = ("promote", "--dataset", "toy", "--version", 1)
        xc(*asked).refused(74, "a file around the packed model is missing or has changed", "--repair; the champion is")
        assert "replaces version 1, with the same content" in xc("promote", "--dataset", "toy", "--repair").out
    finally:
        (home / "serving.py").write_bytes(code)
    assert champion_files(store, "toy").parents[1] != home
    assert not any(finding.level == "fault" for finding in health.check())
    assert xc("promote", "--dataset", "toy", "--repair").out.endswith("is whole\n")
    only_the_first(store)


def test_files_around_the_packed_model_that_were_changed_on_purpose_are_recorded_as_they_are(
    released: Released, project: Workspace, store: Store, xc: Xc
) -> None:
    """As it is with a version that was registered before these files were recorded: it has no such tag."""
    needs = champion_files(store, "toy").parents[1] / "requirements.txt"
    before, content = store.client.get_model_version("xc-toy", "1").tags[AROUND], needs.read_bytes()
    needs.write_bytes(content + b"gunicorn\n")
    try:
        (fault,) = [finding.text for finding in health.check() if finding.level == "fault"]
        assert "delete the tag around of the version in MLflow" in fault
        store.client.delete_model_version_tag("xc-toy", "1", AROUND)
        (note,) = [finding.text for finding in health.check() if "champion of toy" in finding.text]
        assert "damage to them is not seen" in note and "xc promote --dataset toy --repair" in note
        assert "recorded as they are" in xc("promote", "--dataset", "toy", "--repair").out
        assert store.client.get_model_version("xc-toy", "1").tags[AROUND] != before
        assert {finding.level for finding in health.check() if "champion of toy" in finding.text} == {"ok"}
        assert xc("promote", "--dataset", "toy", "--repair").out == "version 1 of xc-toy is whole\n"
    finally:
        needs.write_bytes(content)
        store.client.set_model_version_tag("xc-toy", "1", AROUND, before)


@pytest.mark.parametrize("origin", ["whole", "damaged", "gone"])
def test_a_repaired_version_is_made_again_from_the_same_files(
    damaged: Path, xc: Xc, own: Workspace, store: Store, tmp_path: Path, origin: str
) -> None:
    """The project may have changed since. Its own files are taken if those of the version are damaged or gone."""
    before = store.client.get_model_version("xc-toy", "1")
    folder = Path(local_file_uri_to_path(store.client.get_run(before.run_id).info.artifact_uri), FOLDER)
    whole = shutil.copytree(folder, tmp_path / "whole")
    own.params.path.write_text(f"{own.params.path.read_text()}# changed\n")
    if origin == "damaged":
        (folder / ARTEFACTS).write_bytes(b"\xff")
    elif origin == "gone":
        shutil.rmtree(folder)
    try:
        assert xc("promote", "--dataset", "toy", "--repair").code == 0
    finally:
        shutil.copytree(whole, folder, dirs_exist_ok=True)
    old, new = (
        read(store.client, "toy", version, tmp_path / str(version)) for version in (1, pointed(store)["champion"])
    )
    assert (old.files.keys(), old.artefacts) == (new.files.keys(), new.artefacts)
    recorded = origin == "whole"
    assert new.files["params.yaml"].read_text().endswith("# changed\n") is not recorded
    assert new.tags["dagster_run"] == ("r1" if recorded else "none, made on the command line")


@pytest.mark.parametrize(("spoil", "found"), [(None, "whose content has changed"), (Path.unlink, "no file ")])
@pytest.mark.parametrize("known", [True, False], ids=["pointer", "asked"])
def test_what_asks_a_damaged_champion_says_how_to_repair_it(
    damaged: Path, xc: Xc, project: Workspace, tmp_path: Path,
    spoil: Callable[[Path], None] | None, found: str, known: bool,
) -> None:  # fmt: skip
    champions.write_pointer(project, "toy")
    if not known:
        (project.state / "champions" / "toy.json").unlink()
    if spoil is not None:
        spoil(damaged / "encoder.safetensors")
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "falcon"}\n')
    for asked in (["falcon"], ["--input", texts, "--output", tmp_path / "out.jsonl"]):
        xc("predict", "--dataset", "toy", *asked).refused(74, found, "xc promote --dataset toy --repair")
    with pytest.raises(CorruptError) as caught:
        Models(source_of("toy", None, None))
    assert caught.value.do == "xc promote --dataset toy --repair"


def test_a_champion_whose_folder_is_gone_is_repaired_by_the_command_that_is_named(
    second: int, xc: Xc, store: Store, project: Workspace
) -> None:
    aliases.set_champion(store.client, "xc-toy", second)
    champions.write_pointer(project, "toy")  # there is none of a version without files
    ended = xc("predict", "--dataset", "toy", "falcon")
    ended.refused(66, f"no files of xc-toy version {second}", "xc promote --dataset toy --repair")
    assert xc("promote", "--dataset", "toy", "--repair").code == 0
    assert json.loads(xc("predict", "--dataset", "toy", "--json", "falcon").out)[0]["title"] == "falcon"


def test_a_champion_that_no_packed_model_equals_cannot_be_repaired(
    damaged: Path, xc: Xc, own: Workspace, store: Store
) -> None:
    shutil.rmtree(own.folder("model", "toy", "ngame"))
    ended = xc("promote", "--dataset", "toy", "--repair")
    ended.refused(66, "no packed model with the content of version 1", "xc lineage 1 --dataset toy --rebuild FOLDER")


def test_doctor_sees_a_champion_under_another_root(
    released: Released, project: Workspace, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "moved").as_uri())
    faults = [finding.text for finding in health.check() if finding.level == "fault"]
    assert len(faults) == 1
    assert "champion of toy: version 1, recipe ngame: found its files under another root" in faults[0]


def test_the_champion_of_a_moved_project_is_repaired_where_it_is_now(
    own: Workspace, xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow keeps absolute paths: without its own experiment the project would write where it no longer is."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "old").as_uri())
    assert xc("promote", "--dataset", "toy", "--recipe", "ngame").code == 0
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "new").as_uri())
    ended = xc("predict", "--dataset", "toy", "falcon")
    ended.refused(66, "no files of xc-toy version 1", "--repair")
    assert f"expected: the files in {(tmp_path / 'old').as_uri()}" in ended.err
    assert xc("promote", "--dataset", "toy", "--repair").code == 0
    assert json.loads(xc("predict", "--dataset", "toy", "--json", "falcon").out)[0]["title"] == "falcon"
    assert [finding.level for finding in health.check() if "champion of toy" in finding.text] == ["ok"]
    assert not (tmp_path / "old").exists()


def test_a_moved_project_that_lost_its_packed_model_is_repaired_from_the_files_that_came_with_it(
    own: Workspace, xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to make the model again, by a command that did not find its origin after the move."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "old").as_uri())
    assert xc("promote", "--dataset", "toy", "--recipe", "ngame").code == 0
    before = xc("lineage", 1, "--dataset", "toy").out
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "new").as_uri())
    shutil.rmtree(own.folder("model", "toy", "ngame"))
    assert xc("lineage", 1, "--dataset", "toy").out == before and "encoder:" in before
    repair = ("promote", "--dataset", "toy", "--repair")

    [weights] = (tmp_path / "new").rglob("encoder.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    xc(*repair).refused(66, "no packed model with the content of version 1", "xc lineage 1 --dataset toy --rebuild")
    weights.write_bytes(content)

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    digest = client.get_model_version("xc-toy", "1").tags["bundle"]
    client.set_model_version_tag("xc-toy", "1", "bundle", "f" * len(digest))  # whole files, but not of this model
    xc(*repair).refused(66, "no packed model with the content of version 1")
    client.set_model_version_tag("xc-toy", "1", "bundle", digest)

    assert "version 2 of xc-toy replaces version 1" in xc(*repair).out
    assert json.loads(xc("predict", "--dataset", "toy", "--json", "falcon").out)[0]["title"] == "falcon"
    assert [finding.level for finding in health.check() if "champion of toy" in finding.text] == ["ok"]
    after = xc("lineage", 2, "--dataset", "toy").out
    assert {line for line in before.splitlines() if not line.startswith("MLflow run")} <= set(after.splitlines())
    first, second = (client.get_run(client.get_model_version("xc-toy", str(n)).run_id) for n in (1, 2))
    assert first.data.metrics and first.data.metrics == second.data.metrics
    assert first.data.params and first.data.params == second.data.params
    shown = [path.path for path in client.list_artifacts(second.info.run_id)]
    assert {"origin", "plots"} <= set(shown) and {".html", ".json"} <= {Path(name).suffix for name in shown}
    assert not (tmp_path / "old").exists()


def test_in_a_moved_project_the_same_model_is_promoted_again(
    own: Workspace, xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate refused it: the champion, with the same content, could not be compared."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "old").as_uri())
    assert xc("promote", "--dataset", "toy", "--recipe", "ngame").code == 0
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "new").as_uri())
    assert xc("promote", "--dataset", "toy", "--recipe", "ngame").out == "models:/xc-toy@champion is version 2\n"
    assert json.loads(xc("predict", "--dataset", "toy", "--json", "falcon").out)[0]["title"] == "falcon"
    xc("rollback", "--dataset", "toy").refused(66, "no previous champion")
    tags = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").get_model_version("xc-toy", "2").tags
    assert (tags["gate"], tags["repairs"]) == ("passed", "1")


def test_a_copy_of_a_project_registers_its_model_again_in_its_own_folder(
    own: Workspace, xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion of a copy was a version whose files are the original's, which the copy must not depend on."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    for number, place in enumerate(("original", "copy"), 1):
        monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / place).as_uri())
        ended = xc("promote", "--dataset", "toy", "--recipe", "ngame")
        assert ended.out == f"models:/xc-toy@champion is version {number}\n"
        assert [finding.level for finding in health.check() if "champion of toy" in finding.text] == ["ok"]


def test_a_copy_of_a_project_says_that_its_champion_has_files_of_the_original(
    released: Released, project: Workspace, xc: Xc, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knew before the original was deleted, or had other files."""
    note, asked = "note: the champion's files are under another root, ", ("predict", "--dataset", "toy", "falcon")
    assert note not in xc("promote", "--dataset", "toy", "--version", 1).err + xc(*asked).err
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "copy").as_uri())
    ended = xc("promote", "--dataset", "toy", "--version", 1)
    assert ended.out == "models:/xc-toy@champion is version 1\n"
    assert f"{note}{champion_files(store, 'toy')}; to register them in this project: xc promote --da" in ended.err
    assert note in xc(*asked).err, "the pointer is known"
    (project.state / "champions" / "toy.json").unlink()
    assert note in xc(*asked).err, "MLflow is asked"
    other = store.client.create_model_version("xc-toy", store.client.get_model_version("xc-toy", "1").source).version
    aliases.set_champion(store.client, "xc-toy", other)
    assert note in xc("rollback", "--dataset", "toy").err
    only_the_first(store)


def test_if_the_champion_was_deleted_by_hand_its_registered_versions_are_named(
    xc: Xc, declared: Registry, fresh: Workspace
) -> None:
    """The advice was to release a recipe, which may have to be trained first."""
    for number in (declared.version(), declared.version(), declared.version()):
        aliases.set_champion(declared.client, declared.name, number)
    declared.client.delete_model_version(declared.name, "3")
    do = f"promote one of the versions 1, 2: xc promote --dataset {declared.dataset} --version N; or "
    xc("predict", "--dataset", declared.dataset, "falcon").refused(66, f"no champion of {declared.dataset}", do)


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"])
def test_a_new_registry_is_called_new(
    ready: Workspace, xc: Xc, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """As after the deletion of MLflow's database, which a command that only reads does not make again."""
    monkeypatch.setenv(variable, f"sqlite:///{tmp_path / 'new.db'}")
    for command in (["promote"], ["promote", "--version", 1], ["rollback"], ["lineage", 1], ["delete", "--version", 1]):
        found = f"no database of MLflow at {tmp_path / 'new.db'}"
        xc(*command, "--dataset", "toy").refused(66, found, "xc promote --dataset NAME --recipe NAME; if there was")
    found = "no champion of toy; MLflow has no database yet"
    xc("predict", "--dataset", "toy", "falcon").refused(66, found, "MLflow's database has changed")
    assert not (tmp_path / "new.db").exists()

    database.made(f"sqlite:///{tmp_path / 'new.db'}")
    new = "; the registry is new, it has no model at all"
    xc("promote", "--dataset", "toy").refused(66, f"no challenger of xc-toy{new}")
    xc("rollback", "--dataset", "toy").refused(66, f"no champion of xc-toy{new}")
    xc("predict", "--dataset", "toy", "falcon").refused(66, f"no champion of toy{new}", "MLflow's database has changed")
    notes = [finding.text for finding in health.check() if finding.level == "note"]
    assert any(f"{tmp_path / 'new.db'} is new: it has no model, but the project has some" in text for text in notes)


@pytest.mark.parametrize(
    "command", [["promote"], ["promote", "--version", 1], ["rollback"], ["delete", "--version", 1]]
)
def test_a_command_that_only_asks_the_registry_makes_no_database_of_runs(
    xc: Xc, project: Workspace, released: Released, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store,
    command: list[str | int],
) -> None:  # fmt: skip
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.uri)
    ended = xc(*command, "--dataset", "toy")
    expected = {"rollback": "no previous champion of xc-toy", "delete": "version 1, which has the alias champion"}
    assert expected.get(str(command[0]), "") in ended.err
    assert not (tmp_path / "runs.db").exists()


# without a server


def test_without_runs_a_registered_version_is_promoted_and_rolled_back(
    xc: Xc, project: Workspace, store: Store, released: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back from a bad champion was closed while the server of runs was down, which neither needs."""
    other = store.client.create_model_version("xc-toy", store.client.get_model_version("xc-toy", "1").source).version
    monkeypatch.setenv("MLFLOW_TRACKING_URI", UNREACHABLE)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    promoted = xc("promote", "--dataset", "toy", "--version", other, "--reason", "a test")
    assert promoted.out == f"models:/xc-toy@champion is version {other}\n"
    assert xc("rollback", "--dataset", "toy").out.startswith("models:/xc-toy@champion is version 1 again")
    found = f"no answer from MLflow at {UNREACHABLE}"
    for command in (["promote", "--recipe", "ngame"], ["delete", "--version", other], ["lineage", 1]):
        xc(*command, "--dataset", "toy").refused(69, found, "set MLFLOW_TRACKING_URI")
    only_the_first(store)


@pytest.mark.parametrize(
    "arguments",
    [
        ["promote", "--dataset", "toy"],
        ["promote", "--dataset", "toy", "--recipe", "ngame"],
        ["rollback", "--dataset", "toy"],
        ["predict", "--dataset", "toy", "falcon"],
    ],
)
def test_without_a_server_each_command_reports_it(xc: Xc, no_server: Workspace, arguments: list[str]) -> None:
    ended = xc(*arguments)
    ended.refused(69, f"no answer from MLflow at {UNREACHABLE}", "set MLFLOW_TRACKING_URI")
    assert not ended.out


@pytest.mark.parametrize("command", [["promote"], ["rollback"], ["predict", "falcon"], ["lineage", 1]])
def test_without_a_registry_its_own_address_is_named(
    xc: Xc, project: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch, command: list[str | int]
) -> None:
    """The tracking store, which had answered, was called down."""
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", UNREACHABLE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = f"no answer from MLflow at {UNREACHABLE}"
    xc(*command, "--dataset", "toy").refused(69, found, "set MLFLOW_REGISTRY_URI")


def test_an_address_of_both_is_that_of_the_tracking_store(
    xc: Xc, project: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another registry the tracking store, which is asked first, would still be down."""
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(variable, UNREACHABLE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    xc("rollback", "--dataset", "toy").refused(69, f"no answer from MLflow at {UNREACHABLE}", "set MLFLOW_TRACKING_URI")


def test_without_a_server_a_named_recipe_still_predicts(xc: Xc, no_server: Workspace) -> None:
    ended = xc("predict", "--dataset", "toy", "--recipe", "ngame", "--json", "falcon")
    assert json.loads(ended.out)[0]["title"] == "falcon"


def test_without_a_server_doctor_reports_a_fault(xc: Xc, no_server: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.checks", entry("mlflow", health.check))
    ended = xc("doctor")
    assert ended.code == 78
    assert f"fault  found no answer from MLflow at {UNREACHABLE}" in ended.out


def test_doctor_names_runs_and_registry_each_with_its_address(
    released: Released, project: Workspace, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry was not named; a server of runs that was down hid the champions."""
    runs = f"sqlite:///{tmp_path / 'runs.db'}"
    database.made(runs)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for tracking, registry, expected in (
        (runs, store.uri, ["ok", "ok", "ok"]),
        (UNREACHABLE, store.uri, ["fault", "ok", "ok"]),
        (store.uri, UNREACHABLE, ["ok", "fault"]),
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
        monkeypatch.setenv("MLFLOW_REGISTRY_URI", registry)
        first, second, *others = [f for f in health.check() if not f.text.startswith("packed model")]
        assert [finding.level for finding in (first, second, *others)] == expected
        for finding, subject, address in ((first, "MLflow", tracking), (second, "MLflow's registry", registry)):
            bad = f"found no answer from MLflow at {address} "
            assert finding.text.startswith(bad if address == UNREACHABLE else f"{subject} answers at {address}")
        assert [finding.text for finding in others] == ["champion of toy: version 1, recipe ngame"][: len(others)]
