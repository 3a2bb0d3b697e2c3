"""The MLflow registry: a packed model becomes a version, which must pass the gate to become champion."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from assets.database import synced
from assets.release.aliases import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    ROLLED_BACK,
    ChampionChangedError,
    check_champion,
    set_champion,
    until_champion_stays,
    version_of,
)
from assets.release.best import BEST
from assets.release.origin import Origin
from assets.release.page import MODEL_PAGE, Page, description, log_page
from assets.release.versions import (
    AROUND,
    delete_model,
    digest_around,
    download,
    experiment_of,
    lasting,
    model_name,
    own_folder,
    set_page,
    set_tags,
    storable,
    versions_of,
)
from assets.tracking import Logged, experiment_id
from xc_core import artifacts
from xc_core.errors import MovedError, first_line
from xc_core.leftovers import drop
from xc_core.progress import report

if TYPE_CHECKING:
    from assets.release.gate import Verdict

GATE: Final = "gate"
"""Tag: "passed" or "refused"."""
PASSED: Final = "passed"
JUDGED_ON: Final = "gate_on"
"""Tag: the acceptance set, in words."""
_MARK: Final = "xc.registration"
"""Tag of a run: which registration it is of."""
_SERVING_NEEDS: Final = (
    "faiss-cpu", "numpy", "polars", "psutil", "pyarrow", "ruamel.yaml", "safetensors", "scipy", "tokenizers", "torch",
    "tqdm", "transformers",
)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A packed model that may become champion."""

    dataset: str
    recipe: str
    folder: Path
    digest: str
    """Digest of the model's content."""
    judge: Callable[[Any, Any | None], Verdict]
    """Compares its version with that of the champion, or with None."""
    origin: Origin = field(default_factory=Origin)
    page: Page = field(default_factory=Page)
    auto: bool = True
    """True if it becomes champion when the gate lets it pass."""
    moving: Callable[[], AbstractContextManager[None]] = nullcontext
    """Returns the lock of those who change the champion."""
    registering: Callable[[], AbstractContextManager[None]] = nullcontext
    """Returns the lock of those who register a model of the dataset: two of them would register one model twice."""
    under_way: Path | None = None
    """File that names the MLflow run of a registration until it has ended; who holds the lock may write it."""

    @property
    def tags(self) -> dict[str, str]:
        """The tags of its version."""
        return {"bundle": self.digest, "recipe": self.recipe, **self.origin.tags}


@dataclass(frozen=True)
class Released:
    """The registered version of a candidate, whether it is champion, and what the gate said."""

    version: int
    is_champion: bool
    message: str
    verdict: Verdict | None = None
    """None for a model that is champion already."""
    champion: Any | None = field(default=None, compare=False)
    """The champion when the gate was asked; None without one."""

    @property
    def refused(self) -> bool:
        """True if a line of the gate failed."""
        return self.verdict is not None and not self.verdict.passed


def register(client: Any, artifact_root: str, candidate: Candidate) -> Released:
    """Register a packed model once and ask the gate. It becomes challenger if it passes, and champion by the policy.

    A model is known by its digest; one whose registered files are gone, damaged or those of another project is
    registered again. Raises MovedError if another process set the champion at the same moment (``set_champion``).
    """
    return until_champion_stays(partial(_register, client, artifact_root, candidate))


def _register(client: Any, artifact_root: str, candidate: Candidate) -> Released:
    """Register the model and ask the gate once; raise ChampionChangedError if the champion has changed by then."""
    name = model_name(candidate.dataset)
    with _registering(client, candidate):
        existing = registered(client, name, candidate.digest, artifact_root)
        champion = version_of(client, name, CHAMPION)
        lost = existing is None and champion is not None and champion.tags.get("bundle") == candidate.digest
        if not lost:
            version = _new_version(client, artifact_root, candidate) if existing is None else int(existing.version)
    if lost:
        return _champion_again(client, artifact_root, candidate, champion)
    if champion is not None and version == int(champion.version):
        _move_aliases(client, candidate, version, champion)
        return Released(version, True, f"version {version} is champion: it is already", champion=champion)
    info = existing or client.get_model_version(name, str(version))
    verdict, champion = _judge(client, name, candidate, info)
    _record_verdict(client, version, candidate, verdict, candidate.tags if existing is None else existing.tags)
    if not verdict.passed:
        return Released(version, False, f"version {version} is refused: {verdict.reason}", verdict, champion)
    taken_out = existing is not None and ROLLED_BACK in existing.tags
    waits = taken_out or not candidate.auto
    # recording a verdict takes seconds, so the champion may be another one now
    _move_aliases(client, candidate, version, champion, to_champion=not waits)
    if waits:
        reason = f"it was rolled back on {existing.tags[ROLLED_BACK]}" if existing and taken_out else verdict.summary
        do = f"xc promote --dataset {candidate.dataset} --version {version} makes it champion"
        return Released(version, False, f"version {version} is challenger: {reason}; {do}", verdict, champion)
    text = verdict.summary if champion is not None else f"the first one, judged on {verdict.documents}"
    return Released(version, True, f"version {version} is champion: {text}", verdict, champion)


def _champion_again(client: Any, artifact_root: str, candidate: Candidate, lost: Any) -> Released:
    """Register the model of the champion again, whose files are gone, damaged or of another project; ask no gate."""
    version = replaced(client, artifact_root, candidate, lost)
    champion = version_of(client, lost.name, CHAMPION)
    if champion is None or int(champion.version) != version:
        raise ChampionChangedError
    message = f"version {version} is champion: it replaces version {lost.version}, with the same content"
    return Released(version, True, message, champion=champion)


def _move_aliases(
    client: Any, candidate: Candidate, version: int, champion: Any | None, *, to_champion: bool = False
) -> None:
    """Make a version challenger, and champion too if asked for; raise ChampionChangedError if that is not ``champion``.

    All aliases are changed under one lock: ``replaced`` gives a new version those that it has read there.
    """
    name = model_name(candidate.dataset)
    with candidate.moving():
        check_champion(client, name, champion)
        if to_champion:
            set_champion(client, name, version)
        client.set_registered_model_alias(name, CHALLENGER, str(version))


def _judge(client: Any, name: str, candidate: Candidate, info: Any) -> tuple[Verdict, Any | None]:
    """Ask the gate, and ask again if another version became champion meanwhile.

    Returns its verdict and the champion that it compared the model with.
    """

    def attempt() -> tuple[Verdict, Any | None]:
        champion = version_of(client, name, CHAMPION)
        verdict = candidate.judge(info, champion)
        check_champion(client, name, champion)
        return verdict, champion

    return until_champion_stays(attempt)


def _record_verdict(
    client: Any, version: int, candidate: Candidate, verdict: Verdict, version_tags: Mapping[str, str]
) -> None:
    """Write what the gate said on the page of the version, whose other tags are ``version_tags``."""
    name, failed = model_name(candidate.dataset), ", ".join(line.name for line in verdict.failed)
    tags = {
        GATE: PASSED if verdict.passed else "refused",
        "gate_failed": failed or "nothing",
        JUDGED_ON: verdict.documents,
    }
    if verdict.passed and verdict.best is not None:
        tags[BEST] = verdict.best.text()
    set_tags(client, name, version, tags)
    run = client.get_model_version(name, str(version)).run_id
    experiment = experiment_of(client, run)
    logged = None if experiment is None else Logged(experiment, run)
    set_page(client, name, version, description(candidate.recipe, candidate.page, version_tags, verdict, logged))


def registered(client: Any, name: str, digest: str, artifact_root: str) -> Any | None:
    """Return the newest version of a model, by its digest, whose files are whole and of this project, or None."""
    versions = versions_of(client, name, digest)
    return next((version for version in versions if own_folder(version, artifact_root) is not None), None)


@contextmanager
def _registering(client: Any, candidate: Candidate) -> Iterator[None]:
    """Hold the lock of those who register a model; clear up after one that failed now, or was killed before.

    While the lock is held, no other process registers a model of the dataset in this project.
    """
    with candidate.registering():
        try:
            _clear_up(client, candidate.under_way)
        except Exception as error:  # as of a store that lets nobody delete
            leftovers = f"files of a registration of {candidate.dataset} that was not completed"
            report(f"note: {leftovers} stay in MLflow ({first_line(error)})")
        try:
            yield
        except Exception:
            with suppress(Exception):  # what stays is deleted by the next registration
                _clear_up(client, candidate.under_way)
            raise


def _clear_up(client: Any, under_way: Path | None) -> None:
    """End the run of a registration that was not completed, which MLflow may show as running, and delete its files.

    On a full disk each attempt would leave one more. What the original of a copied project registers is left alone.
    """
    if under_way is None:
        return
    try:
        experiment, mark, written_at = json.loads(under_way.read_text("utf-8"))
    except FileNotFoundError:
        return
    except (ValueError, TypeError):  # a damaged file, which names no run
        drop(under_way)
        return
    runs = client.search_runs([experiment], f"tags.`{_MARK}` = '{mark}'") if written_at == str(under_way) else []
    for run in runs:
        if run.info.status == "RUNNING":
            client.set_terminated(run.info.run_id, "KILLED")
        if not client.search_model_versions(f"run_id = '{run.info.run_id}'"):
            of_run = f"source_run_id = '{run.info.run_id}'"
            for model in client.search_logged_models([experiment], filter_string=of_run):
                delete_model(client, model)
    drop(under_way)


@contextmanager
def _marking_run(experiment: str, candidate: Candidate) -> Iterator[dict[str, str]]:
    """Yield a tag for the run of a registration, by which the next one finds it if this process is killed."""
    if candidate.under_way is None:
        yield {}
        return
    mark = f"{time.time_ns()}-{os.getpid()}"
    artifacts.write_file(candidate.under_way, json.dumps([experiment, mark, str(candidate.under_way)]))
    yield {_MARK: mark}
    drop(candidate.under_way)  # it stays after an error: MLflow may still show the run as running


def _new_version(client: Any, artifact_root: str, candidate: Candidate) -> int:
    """Log the packed model as a pyfunc model from code and register it, with all that its page shows.

    Raises MovedError if another run replaced the packed model meanwhile; then there is no new version.
    """
    import mlflow

    name = model_name(candidate.dataset)
    experiment = experiment_id(client, artifact_root, candidate.dataset)
    with _marking_run(experiment, candidate) as mark:
        tags = candidate.tags | mark
        with mlflow.start_run(experiment_id=experiment, run_name=f"model {candidate.recipe}", tags=tags) as run:
            info = mlflow.pyfunc.log_model(
                name="model",
                python_model=str(Path(__file__).with_name("serving.py")),
                artifacts={"bundle": str(candidate.folder)},
                input_example=(["a small dog with long hair"], {"k": 5, "tail": -1.0, "min_probability": 0.0}),
                pip_requirements=[
                    f"{package}=={metadata.version(package).split('+')[0]}" for package in _SERVING_NEEDS
                ],
                code_paths=[str(Path(__file__).resolve().parents[2] / "xc_core")],
            )
            log_page(client, run.info.run_id, info.model_id, candidate.page, candidate.origin)
            # last, and in one step: a version that is known by its digest has its origin and its page too
            version = int(mlflow.register_model(info.model_uri, name, tags=storable(candidate.tags)).version)
        _check_logged(client, name, version, candidate)
    client.update_registered_model(name, MODEL_PAGE.format(dataset=candidate.dataset))
    return version


def _check_logged(client: Any, name: str, version: int, candidate: Candidate) -> None:
    """Delete a version that holds another model than the candidate, and raise MovedError.

    Otherwise its files are on the disk at the end: an alias that points at them would survive a power cut. A tag has
    the digest of those around the packed model.
    Raises MissingError, CorruptError for files that cannot be read; they may be whole, so the version stays, as it does
    after a StorageError.
    """
    folder = download(client.get_model_version(name, str(version)))
    if artifacts.verify(folder, kind="model").digest() == candidate.digest:
        home = folder.parents[1]
        for path in (*home.rglob("*"), home, *home.parents[:4]):  # MLflow makes up to four folders above it
            synced(path)
        set_tags(client, name, version, {AROUND: digest_around(folder)})
        return
    client.delete_model_version(name, str(version))
    raise MovedError(
        f"the packed model of {candidate.dataset}/{candidate.recipe} changed while it was registered",
        expected="a model that no other run packs meanwhile; nothing was registered",
        do="register it again",
    )


def replaced(client: Any, artifact_root: str, candidate: Candidate, old: Any) -> int:
    """Register the model of the version ``old`` again, with its tags and description, and give it its aliases.

    Tags of the candidate's origin take precedence: they belong to the files that are registered with it.
    """
    with _registering(client, candidate):
        version = _new_version(client, artifact_root, candidate)
    set_tags(client, old.name, version, {**lasting(old.tags), **candidate.origin.tags, "repairs": str(old.version)})
    if old.description:
        client.update_model_version(old.name, str(version), old.description)
    with candidate.moving():
        targets = {alias: version_of(client, old.name, alias) for alias in (CHAMPION, CHALLENGER, PREVIOUS)}
        aliases = {alias for alias, target in targets.items() if target is not None and target.version == old.version}
        if CHAMPION in aliases:
            set_champion(client, old.name, version)  # which makes the damaged version previous
            if targets[PREVIOUS] is None:
                client.delete_registered_model_alias(old.name, PREVIOUS)
            else:
                client.set_registered_model_alias(old.name, PREVIOUS, targets[PREVIOUS].version)
        for alias in sorted(aliases - {CHAMPION}):
            client.set_registered_model_alias(old.name, alias, str(version))
    return version
