"""The record of a registered version, and the earlier versions whose trained parts it kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from assets.release.moved import moved_run
from assets.release.origin import ARTEFACTS, FOLDER, KEPT_FROM
from xc_core.chain.extension import EXTENDED_TO
from xc_core.chain.kept import REFRESHED
from xc_core.chain.registry import TRAIN_STAGES
from xc_core.errors import CorruptError, MovedError, first_line

TOKENS: Final = "tokens"
"""The stage that experiments share: labels may come to it in more steps, and stay when a model is refreshed."""

_TRAIN_ADVICE: Final = "train and promote a version that can be made again; the files of this one are in the registry"


@dataclass(frozen=True)
class Lineage:
    """A registered version: its tags, and the files of its origin by name."""

    dataset: str
    recipe: str
    version: int
    run: str
    tags: dict[str, str]
    files: dict[str, Path]
    artefacts: dict[str, Any]
    """Digest, fingerprint and settings of each stage's artefact."""

    @property
    def kept(self) -> dict[str, list[str]]:
        """The stages whose artefacts kept parts of earlier ones, with the digests of these, the direct one last.

        Tokens are made of texts alone, so tokens with new labels are no reason to look for an earlier version.
        """
        kept = {
            stage: facts for stage, facts in self.artefacts.items() if facts.get("refreshed") or self.extends(stage)
        }
        return {} if kept.keys() <= {TOKENS} else {stage: facts.get(KEPT_FROM, []) for stage, facts in kept.items()}

    def extends(self, stage: str) -> bool:
        """Return True if labels were added to the artefact of a stage."""
        return bool(self.artefacts.get(stage, {}).get("extended"))

    @property
    def has_new_labels(self) -> bool:
        """True if labels were added to the model of an earlier version, instead of a refresh."""
        return self.extends(REFRESHED)

    def label_counts(self, earlier: Lineage) -> list[int]:
        """Return how many labels there were after each of ``steps``, as far as that is recorded."""
        numbers: list[int] = self.artefacts[REFRESHED].get(EXTENDED_TO, [])
        return numbers[-self.steps(earlier) :]

    def steps(self, earlier: Lineage) -> int:
        """Return how many ``xc add-labels`` there were since the earlier version of ``history``; 1 for a refresh."""
        digests = list(reversed(self.kept.get(REFRESHED, [])))
        digest = earlier.artefacts.get(REFRESHED, {}).get("digest")
        return digests.index(digest) + 1 if digest in digests else 1

    @property
    def chain(self) -> dict[str, Any]:
        """The artefacts that a training makes."""
        return {stage: facts for stage, facts in self.artefacts.items() if stage in TRAIN_STAGES}


_Find = Callable[[int], Lineage | None]


def read(client: Any, dataset: str, version: int, scratch: Path, artifact_root: str = "") -> Lineage:
    """Return the lineage of a version; the files of its origin are copied into the folder ``scratch``.

    If they are no longer where MLflow looks, as in a project that was moved, those under ``artifact_root`` are read.

    Raises MissingError if there is no such version, CorruptError if its origin cannot be read.
    """
    import mlflow

    from assets.release import versions

    name = versions.model_name(dataset)
    versions.check_version(client, name, version)
    version_info = client.get_model_version(name, str(version))
    run_id, folder = version_info.run_id, None
    if versions.experiment_of(client, run_id) and client.list_artifacts(run_id, FOLDER):
        folder = Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=FOLDER, dst_path=str(scratch)))
    elif home := moved_run(client, run_id, name, artifact_root):
        folder = home / FOLDER
    paths = [] if folder is None else [path for path in folder.rglob("*") if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path for path in paths if folder is not None}
    artefacts = _artefacts(files[ARTEFACTS], version) if ARTEFACTS in files else {}
    recipe, run = version_info.tags.get("recipe", ""), run_id or "none"
    return Lineage(dataset, recipe, version, run, dict(version_info.tags), files, artefacts)


def _artefacts(path: Path, version: int) -> dict[str, Any]:
    """Return what the origin of a version says of its artefacts; raise CorruptError if it cannot be read."""
    try:
        artefacts: dict[str, Any] = {
            stage: {**facts, "digest": str(facts["digest"])}
            for stage, facts in json.loads(path.read_text("utf-8")).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"an unreadable {FOLDER}/{ARTEFACTS} in the MLflow run of version {version} ({first_line(error)})",
            expected="digests of the artefacts that the version was made from",
            do="restore the files of MLflow; the model itself may be whole, which xc doctor checks",
        ) from error
    return artefacts


def history(client: Any, record: Lineage, scratch: Path, artifact_root: str = "") -> list[Lineage]:
    """Return a version after those that it was made from, the oldest first, which is the one that was trained.

    Their files are copied into folders of ``scratch``. Raises MovedError if one of them is not known.
    """
    from assets.release import versions

    numbers = versions.numbers_of(client, versions.model_name(record.dataset)) if record.kept else []
    return _chain(record, numbers, _reader(client, record.dataset, scratch, artifact_root))


def losing_history(
    client: Any, dataset: str, deleted: Collection[int], scratch: Path, artifact_root: str = ""
) -> list[int]:
    """Return the versions whose ``history`` is known now, and not without the versions ``deleted``."""
    from assets.release import versions

    numbers = versions.numbers_of(client, versions.model_name(dataset))
    left = [number for number in numbers if number not in deleted]
    find = _reader(client, dataset, scratch, artifact_root)

    def known(record: Lineage, among: Sequence[int]) -> bool:
        with suppress(MovedError):
            return bool(_chain(record, among, find))
        return False

    records = [record for number in left if (record := find(number)) is not None and record.kept]
    return [record.version for record in records if known(record, numbers) and not known(record, left)]


def _reader(client: Any, dataset: str, scratch: Path, artifact_root: str) -> _Find:
    """Return a function that reads a version once; it returns None for one whose origin is damaged."""

    @cache
    def find(number: int) -> Lineage | None:
        with suppress(CorruptError):  # another one may do
            return read(client, dataset, number, scratch / str(number), artifact_root)
        return None

    return find


def _chain(record: Lineage, numbers: Sequence[int], find: _Find) -> list[Lineage]:
    """Return the ``history`` of a version, which is looked for among these versions."""
    chain = [record]
    while chain[0].kept:
        chain.insert(0, _made_from(chain[0], numbers, find))
    return chain


def _made_from(record: Lineage, numbers: Sequence[int], find: _Find) -> Lineage:
    """Return the version with the artefacts of which ``record`` kept parts, the fewest steps away; raise MovedError."""
    if unrecorded := [stage for stage, earlier in record.kept.items() if not earlier]:
        raise MovedError(
            f"version {record.version}, whose {unrecorded[0]} kept parts of an earlier one that is not recorded",
            expected="a record of it; releases up to 0.2.0 made none for a refresh or xc add-labels",
            do=_TRAIN_ADVICE,
        )
    others = [found for number in reversed(numbers) if number != record.version and (found := find(number))]
    for steps in range(1, 1 + max(map(len, record.kept.values()))):
        if (earlier := _nearest(record, others, steps)) is not None:
            return earlier
    found_stages = {stage for stage in record.kept for found in others if _has_earlier(found, record, stage, 1)}
    stage = next((stage for stage in record.kept if stage not in found_stages), next(iter(record.kept)))
    raise MovedError(
        f"no version with the {stage} ({record.kept[stage][-1][:12]}) that version {record.version} was made from",
        expected="a model that was registered before its data or labels changed, and not deleted since",
        do=f"register a model before each xc update, xc add-labels and refresh; {_TRAIN_ADVICE}",
    )


def _nearest(record: Lineage, newest_first: Sequence[Lineage], steps: int) -> Lineage | None:
    """Return the version that ``record`` was made from in so many steps: the newest trained one, else the oldest.

    A refresh with the same labels leaves rows as they are, so the oldest one is the fewest steps away from a training.
    One that was not trained counts only if it is older than ``record``, so the search comes to an end.
    """
    older = None
    for found in newest_first:
        if all(_has_earlier(found, record, stage, steps) for stage in record.kept):
            if not found.kept:
                return found
            older = found if found.version < record.version else older
    return older


def _has_earlier(found: Lineage, record: Lineage, stage: str, steps: int) -> bool:
    """Return True if a version has the artefact of which ``record`` kept parts, so many steps before it."""
    earlier = record.kept[stage]
    newest_first = earlier[::-1]
    accepted = [*earlier, record.artefacts[stage]["digest"]] if stage == TOKENS else newest_first[steps - 1 : steps]
    return found.recipe == record.recipe and found.artefacts.get(stage, {}).get("digest") in accepted
