"""Versions that kept parts of earlier ones: which one a version was made from, and what is recorded of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from assets.release import ancestry, origin, rebuilding
from assets.release.ancestry import Lineage, history, losing_history
from tests.conftest import make_workspace
from xc_core.artifacts import Made, sha256_file, write_file
from xc_core.chain import Workspace
from xc_core.data.corpus import Corpus
from xc_core.errors import CorruptError, MovedError, UsageError
from xc_core.manifests import Manifest

Versions = dict[int, Lineage]


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Versions:
    """Registered versions of toy by their numbers; one that is None is damaged."""
    known: Versions = {}

    def read(_: Any, dataset: str, number: int, scratch: Path, artifact_root: str) -> Lineage:
        assert (dataset, scratch, artifact_root) == ("toy", Path("scratch") / str(number), "root")
        if not known[number].artefacts:
            raise CorruptError("damage", expected="none", do="nothing")
        return known[number]

    monkeypatch.setattr(ancestry, "read", read)
    return known


def add(versions: Versions, recipe: str = "ngame", **artefacts: Any) -> Lineage:
    """Register a version: of each stage its digest, and what it kept parts of."""
    number, facts = len(versions) + 1, dict[str, Any]()
    for stage, (digest, *more) in artefacts.items():
        facts[stage] = {
            "digest": digest,
            **({"refreshed" if stage == "classifier" else "extended": True} if more else {}),
        }
        facts[stage] |= {"kept_from": more[0]} if more and more[0] else {}
    versions[number] = Lineage("toy", recipe, number, "", {}, {}, facts)
    return versions[number]


def found(versions: Versions, record: Lineage) -> list[int]:
    registry = [SimpleNamespace(version=str(number)) for number in versions]
    client = SimpleNamespace(search_model_versions=lambda query: registry if query == "name = 'xc-toy'" else [])
    return [one.version for one in history(client, record, Path("scratch"), "root")]


def test_a_trained_version_comes_from_no_other(versions: Versions) -> None:
    assert found(versions, add(versions, classifier=("a",))) == [1]
    assert found(versions, add(versions, tokens=("b", ["a"]), classifier=("a",))) == [2], "tokens are not trained"


def test_a_refreshed_version_comes_from_the_newest_trained_one_with_its_rows(versions: Versions) -> None:
    add(versions, classifier=("a",))
    add(versions, classifier=("a",), fusion=("f",))
    add(versions, classifier=("b",))
    add(versions, "house", classifier=("a",))
    add(versions)
    add(versions, classifier=("a", ["a"]))
    assert found(versions, add(versions, classifier=("a", ["a"]))) == [2, 7]


def test_a_refresh_of_refreshed_rows_that_stayed_the_same_comes_from_the_first_version_with_them(
    versions: Versions,
) -> None:
    add(versions, classifier=("a",))
    add(versions, classifier=("c", ["c"]))
    add(versions, classifier=("b", ["a"]))
    for _ in range(3):
        add(versions, classifier=("b", ["b"]))
    assert found(versions, versions[5]) == [1, 3, 5]
    add(versions, classifier=("c", ["z"]))  # a newer one is no predecessor
    with pytest.raises(MovedError, match=r"no version with the classifier \(c\) that version 2 was made from"):
        found(versions, versions[2])


def test_a_version_with_new_labels_comes_from_one_with_all_that_they_were_added_to(versions: Versions) -> None:
    add(versions, tokens=("t",), classifier=("a",), scores=("s",))
    add(versions, tokens=("t",), classifier=("a",), scores=("r",))
    record = add(versions, tokens=("v", ["t", "u"]), classifier=("b", ["a"]), scores=("x", ["w", "s"]))
    assert found(versions, record) == [1, 3]
    del versions[1]
    with pytest.raises(
        MovedError, match=r"^found no version with the scores \(s\) that version 3 was made from"
    ) as caught:
        found(versions, record)
    assert "register a model before each xc update, xc add-labels and refresh" in caught.value.do


def test_the_files_of_a_version_are_read_once(versions: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    """After thirty nightly refreshes with new labels xc lineage would read 900 origins, maybe from a remote store."""
    add(versions, classifier=("0",))
    for step in range(5):
        add(versions, classifier=(str(step + 1), [str(step)]))
    read, numbers = ancestry.read, list[int]()

    def counted(client: Any, dataset: str, number: int, scratch: Path, artifact_root: str) -> Lineage:
        numbers.append(number)
        return read(client, dataset, number, scratch, artifact_root)

    monkeypatch.setattr(ancestry, "read", counted)
    assert found(versions, versions[6]) == [1, 2, 3, 4, 5, 6]
    assert len(numbers) == len(set(numbers))


def losing(versions: Versions, *deleted: int) -> list[int]:
    registry = [SimpleNamespace(version=str(number)) for number in versions]
    client = SimpleNamespace(search_model_versions=lambda query: registry if query == "name = 'xc-toy'" else [])
    return losing_history(client, "toy", deleted, Path("scratch"), "root")


def test_versions_that_could_not_be_made_again_without_another_one_are_found(versions: Versions) -> None:
    add(versions, classifier=("a",))
    add(versions, classifier=("b", ["a"]))
    add(versions, classifier=("c", ["b"]))
    add(versions, classifier=("z", ["y"]))  # not known before either
    add(versions)
    versions[5].artefacts.clear()
    assert losing(versions, 1) == [2, 3]
    assert losing(versions, 2) == [3]
    assert losing(versions, 1, 2) == [3], "not those that are deleted too"
    assert losing(versions, 3, 4, 5) == []
    add(versions, classifier=("a",))
    assert losing(versions, 1) == [], "another one has the same rows"
    assert losing(versions, 1, 6) == [2, 3]


def test_labels_that_came_in_several_steps_come_from_the_nearest_version(versions: Versions) -> None:
    add(versions, classifier=("a",), scores=("s",))
    record = add(versions, classifier=("d", ["a", "b", "c"]), scores=("v", ["s", "t", "u"]))
    assert (found(versions, record), record.steps(versions[1])) == ([1, 2], 3)
    add(versions, classifier=("b",), scores=("s",))  # not of the same step
    record = add(versions, classifier=("d", ["a", "b", "c"]), scores=("v", ["s", "t", "u"]))
    assert found(versions, record) == [1, 4]
    add(versions, classifier=("b",), scores=("t",))
    record = add(versions, classifier=("d", ["a", "b", "c"]), scores=("v", ["s", "t", "u"]))
    assert (found(versions, record), record.steps(versions[5])) == ([5, 6], 2)
    record = add(versions, classifier=("d", ["a", "b", "c"]), scores=("v", ["u"]))
    with pytest.raises(MovedError, match=r"no version with the classifier \(c\)"):
        found(versions, record)  # its scores were fitted in between, from data that no version has


def test_the_labels_of_each_step_are_known_as_far_as_they_are_recorded(versions: Versions) -> None:
    add(versions, classifier=("a",))
    record = add(versions, classifier=("d", ["a", "b", "c"]))
    assert record.label_counts(versions[1]) == []
    record.artefacts["classifier"]["extended_to"] = [7, 9]
    assert record.label_counts(versions[1]) == [7, 9]
    record.artefacts["classifier"]["extended_to"] = [5, 7, 9]
    assert record.label_counts(add(versions, classifier=("b",))) == [7, 9]


def test_tokens_that_a_refresh_left_as_they_were_are_those_of_the_earlier_version(versions: Versions) -> None:
    add(versions, tokens=("t",), classifier=("a",))
    add(versions, tokens=("u", ["t"]), classifier=("b", ["a"]))
    assert found(versions, add(versions, tokens=("u", ["t"]), classifier=("c", ["b"]))) == [1, 2, 3]


def test_a_version_of_an_earlier_release_does_not_record_it(versions: Versions) -> None:
    add(versions, classifier=("a",))
    with pytest.raises(MovedError, match="version 2, whose classifier kept parts of an earlier one") as caught:
        found(versions, add(versions, classifier=("b", [])))
    assert "releases up to 0.2.0 made none" in caught.value.expected
    with pytest.raises(MovedError, match="version 3, whose scores kept parts"):
        found(versions, add(versions, classifier=("b", ["a"]), scores=("s", [])))


@pytest.mark.parametrize(
    ("made", "recorded"),
    [
        (Made(), {}),
        (Made(refreshed=True), {"refreshed": True}),
        (Made(refreshed=True, facts={"refreshed_from": "a"}), {"refreshed": True, "kept_from": ["a"]}),
        (Made(facts={"extended_from": ["a", "b"]}), {"extended": True, "kept_from": ["a", "b"]}),
        (
            Made(facts={"extended_from": ["a", "b"], "extended_to": [7, 9]}),
            {"extended": True, "kept_from": ["a", "b"], "extended_to": [7, 9]},
        ),
        (
            Made(refreshed=True, facts={"extended_from": ["a"]}),
            {"refreshed": True, "extended": True, "kept_from": ["a"]},
        ),
    ],
)
def test_the_origin_of_a_version_says_what_its_artefacts_kept_parts_of(made: Made, recorded: dict[str, Any]) -> None:
    assert origin._kept(made) == recorded


def test_nothing_is_cloned_if_the_folder_of_an_earlier_version_exists(tmp_path: Path) -> None:
    (tmp_path / "again-version-1").mkdir()
    files, artefacts = {"params.yaml": tmp_path}, {"corpus": {}, "classifier": {}}
    chain = [Lineage("toy", "ngame", number, "", {}, files, artefacts) for number in (1, 2)]
    with pytest.raises(UsageError, match=r"^found \S+/again-version-1, which exists"):
        rebuilding.rebuilt(Workspace(tmp_path), chain, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_raw_data_that_a_later_change_replaced_is_copied_from_the_version_that_the_project_kept(tmp_path: Path) -> None:
    project, folder = make_workspace(tmp_path / "project"), tmp_path / "again"
    raw = project.raw("toy")
    files = {path.name: {"sha256": sha256_file(path)} for path in raw.iterdir()}
    kept = project.state / "versions" / "toy"
    kept.mkdir(parents=True)
    raw.rename(kept / "0003")
    for later in (raw, kept / "0004"):
        later.mkdir()
        (later / "lbl.json.gz").write_bytes(b"other")
    record = Lineage("toy", "ngame", 1, "", {}, {}, {"corpus": {"source": files}})
    rebuilding._fetch_raw(project, record, folder)
    assert {path.name: {"sha256": sha256_file(path)} for path in (folder / "data/toy/raw").iterdir()} == files


# what a version takes over from the clone of an earlier one

Ran = list[tuple[str, ...]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The commands of ``xc`` that a rebuild runs: whose code, in which project, and what."""
    commands: Ran = []

    def run_xc(environment: dict[str, str], root: Path, *arguments: str) -> None:
        assert environment["XC_ROOT"] == str(root) and arguments[-4:] == ("--dataset", "toy", "--recipe", "ngame")
        commands.append((environment["CODE"], root.name, *arguments[:-4]))

    monkeypatch.setattr(rebuilding, "_run_xc", run_xc)
    monkeypatch.setattr(rebuilding, "_check_equal", lambda *_: None)
    return commands


def clone_of(folder: Path, *made: str, **artefacts: dict[str, Any]) -> rebuilding._Clone:
    """Return the clone of a version, with the folders of these stages."""
    project = Workspace(folder)
    for stage in made:
        project.folder(stage, "toy", "ngame").mkdir(parents=True)
    return rebuilding._Clone(Lineage("toy", "ngame", 1, "", {}, {}, artefacts), folder, project, {"CODE": folder.name})


def stages_in(clone: rebuilding._Clone) -> list[str]:
    return [stage for stage in ("tokens", "encoder", "classifier", "scores") if clone.artefact(stage).is_dir()]


@pytest.mark.parametrize("extended", [False, True])
def test_a_refresh_takes_over_encoder_and_rows_and_tokens_only_if_labels_were_added_to_them(
    tmp_path: Path, ran: Ran, extended: bool
) -> None:
    earlier = clone_of(tmp_path / "one", "tokens", "encoder", "classifier", "scores")
    artefacts = {"tokens": {"extended": extended}, "encoder": {}, "classifier": {"refreshed": True}, "scores": {}}
    clone = clone_of(tmp_path / "two", **artefacts)
    rebuilding._take_over(earlier, clone)
    assert stages_in(clone) == [*(["tokens"] if extended else []), "encoder", "classifier"]
    assert "scores" in stages_in(earlier)
    rebuilding._run_stages(clone, list(artefacts), keep=True, final=True)
    run = [stage for stage in artefacts if stage != "tokens" or not extended]
    assert ran == [("two", "two", "run", stage, "--refresh") for stage in run]


def test_labels_are_added_to_the_earlier_model_by_the_code_of_the_later_version(
    tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"one": ["b", "a"], "two": ["b", "a", "z", "y"]}

    def opened(folder: Path) -> Any:
        uids = labels[folder.parts[-4]]
        table = pl.DataFrame({"uid": uids, "title": uids, "content": [""] * len(uids), "more": uids})
        return SimpleNamespace(table=lambda name: {"labels": table}[name])

    monkeypatch.setattr(Corpus, "open", opened)
    earlier = clone_of(tmp_path / "one", "tokens", "encoder", "classifier", "scores")
    clone = clone_of(
        tmp_path / "two", corpus={}, tokens={}, encoder={}, classifier={"extended": True}, scores={}, audit={}
    )
    rebuilding._take_over(earlier, clone)
    path = tmp_path / "one" / "new-labels.parquet"
    assert ran == [("two", "two", "run", "corpus"), ("two", "one", "add-labels", str(path))]
    assert pl.read_parquet(path, glob=False).rows() == [("z", "z", ""), ("y", "y", "")]
    assert stages_in(clone) == ["tokens", "encoder", "classifier", "scores"]


@pytest.mark.parametrize("recorded", [True, False])
def test_labels_of_several_steps_are_added_in_these_steps(
    tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """A vector may depend on the texts that are encoded with it, and only bytes that are equal are the same version."""
    tables = {name: pl.DataFrame({"uid": list(uids), "title": list(uids), "content": [""] * len(uids)})
              for name, uids in (("one", "ba"), ("two", "bazyx"))}  # fmt: skip
    monkeypatch.setattr(Corpus, "open", lambda folder: SimpleNamespace(table=lambda _: tables[folder.parts[-4]]))
    facts = {"digest": "c", "extended": True, "kept_from": ["a", "b"]} | ({"extended_to": [3, 5]} if recorded else {})
    earlier = clone_of(tmp_path / "one", "classifier", classifier={"digest": "a"})
    clone, added = clone_of(tmp_path / "two", corpus={}, classifier=facts), list[list[str]]()

    def run_xc(_: object, __: object, *arguments: str) -> None:
        if arguments[0] == "add-labels":
            added.append(pl.read_parquet(arguments[1], glob=False)["uid"].to_list())

    monkeypatch.setattr(rebuilding, "_run_xc", run_xc)
    rebuilding._add_labels(earlier, clone)
    assert added == ([["z"], ["y", "x"]] if recorded else [["z", "y", "x"]])


def test_a_trained_version_runs_all_stages_and_one_before_a_refresh_those_of_its_rows(tmp_path: Path, ran: Ran) -> None:
    stages: dict[str, Any] = {stage: {} for stage in ("corpus", "tokens", "classifier", "scores")}
    trained = clone_of(tmp_path / "one", **stages | {"tokens": {"extended": True}})
    labels = clone_of(tmp_path / "two", **stages | {"classifier": {"extended": True, "refreshed": True}})
    refreshed = clone_of(tmp_path / "three", **stages | {"classifier": {"refreshed": True}})
    rebuilding._run_stages(trained, ["tokens"], keep=False, final=True)
    assert ran == [("one", "one", "run", "tokens")]
    for chain, needed in (([trained, labels], stages), ([trained, refreshed], list(stages)[:3]), ([trained], stages)):
        assert rebuilding._needed([clone.record for clone in chain], 0) == list(needed)


@pytest.mark.parametrize(("final", "is_old"), [(False, True), (True, True), (False, False)])
def test_results_of_label_trees_of_an_earlier_version_with_old_code_are_not_compared(
    tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch, lines: list[str], final: bool, is_old: bool
) -> None:
    """A rebuild of the new labels of house ended at the scores of the version that was trained."""
    compared: list[str] = []
    monkeypatch.setattr(rebuilding, "_check_equal", lambda clone, stages: compared.extend(stages))
    stages = ("corpus", "tokens", "classifier", "scores", "fusion", "evaluation", "audit")
    clone = clone_of(tmp_path / "one", **{stage: {} for stage in stages})
    write_file(tmp_path / "one" / "xc_core" / "scores" / ("lexical.py" if is_old else "trees/growing.py"), b"")
    for stage in stages:
        name = "scores/final/lexical/tree0/tree0.cbor" if stage == "scores" else "file"
        manifest = Manifest(stage, {name: {"bytes": 1, "sha256": ""}})
        write_file(clone.artefact(stage) / "manifest.json", manifest.to_file())
    rebuilding._run_stages(clone, list(stages), keep=False, final=final)
    loose = ["scores", "fusion", "evaluation"]
    assert compared == [stage for stage in stages if final or not is_old or stage not in loose]
    notes = [
        line.partition(": label trees of its code cannot be seeded")[0] for line in lines if "made again" not in line
    ]
    wanted = [] if final or not is_old else ["lineage: scores, fusion, evaluation of version 1 not compared"]
    assert notes == wanted
