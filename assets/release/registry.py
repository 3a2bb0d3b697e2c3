"""The MLflow registry: versions of models, their aliases, and the gate that a new version must pass.

Aliases: ``champion`` is served, ``challenger`` was registered last, ``previous`` was champion before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xc_core.errors import MissingError, RefusedError, XCError

if TYPE_CHECKING:
    from mlflow.exceptions import MlflowException

    from xc_core.infer.bundle import Model

CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"
PREVIOUS: Final = "previous"
TEST: Final = "test"
"""Tag: a digest of the test documents that a model was evaluated on."""
_ABSENT: Final = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's error codes for a missing model or version, and for a missing alias."""
_MODEL_PAGE: Final = """\
Labels for texts of the dataset `{dataset}`. Input: a list of texts, and `k`, the number of labels of each. Output: uid,
title and score of the best labels.

Aliases: `champion` is served, `challenger` was registered last, `previous` was champion before."""
_SERVING_NEEDS: Final = (
    "faiss-cpu",
    "numpy",
    "polars",
    "pyarrow",
    "ruamel.yaml",
    "safetensors",
    "scipy",
    "tokenizers",
    "torch",
    "tqdm",
    "transformers",
)


def model_name(dataset: str) -> str:
    """Return the registered name of a dataset's model."""
    return f"xc-{dataset}"


@dataclass(frozen=True)
class Candidate:
    """A packed model that may become champion."""

    dataset: str
    recipe: str
    folder: Path
    digest: str
    """Digest of the model's content."""
    test: str
    """Digest of the test documents it was evaluated on."""
    metrics: dict[str, float]
    max_drop: float
    """Points of P@5 by which it may be below the champion and still replace it."""
    tags: dict[str, str]
    evaluate: Callable[[Path], dict[str, float]] | None = None
    """Returns the metrics of another packed model on the test documents of this one."""

    @classmethod
    def of(
        cls, model: Model, tags: dict[str, str], evaluate: Callable[[Path], dict[str, float]] | None = None
    ) -> Candidate:
        """Return a packed model as a candidate."""
        facts = model.facts
        return cls(
            facts.dataset,
            facts.recipe,
            model.folder,
            model.digest,
            facts.test,
            facts.metrics,
            facts.max_drop,
            tags,
            evaluate,
        )


@dataclass(frozen=True)
class Released:
    """The registered version of a candidate, and whether it became champion."""

    version: int
    is_champion: bool
    message: str


def register(client: Any, artifact_root: str, candidate: Candidate) -> Released:
    """Register a packed model once, make it challenger, and champion if the gate allows it.

    A model is known by its digest; one whose registered files are gone is registered again.
    """
    name = model_name(candidate.dataset)
    version = _registered(client, name, candidate.digest)
    if version is None:
        version = _new_version(client, artifact_root, candidate)
    client.set_registered_model_alias(name, CHALLENGER, str(version))
    try:
        message = _gate(client, name, candidate, version)
    except RefusedError as refusal:
        return Released(version, False, f"version {version} stays challenger: {refusal.found}")
    set_champion(client, name, version)
    return Released(version, True, f"version {version} is champion: {message}")


def _registered(client: Any, name: str, digest: str) -> int | None:
    """Return the newest version of the same model whose files are still there, None if there is none."""
    found = client.search_model_versions(f"name = '{name}' and tags.bundle = '{digest}'")
    numbers = sorted((int(version.version) for version in found), reverse=True)
    return next((number for number in numbers if _has_files(name, number)), None)


def _has_files(name: str, version: int) -> bool:
    import mlflow

    return bool(mlflow.artifacts.list_artifacts(artifact_uri=f"models:/{name}/{version}"))


def _new_version(client: Any, artifact_root: str, candidate: Candidate) -> int:
    """Log the packed model as a pyfunc model from code and register it."""
    import mlflow

    from assets.tracking import experiment_id

    name = model_name(candidate.dataset)
    experiment = experiment_id(client, artifact_root, candidate.dataset)
    with mlflow.start_run(experiment_id=experiment, run_name=f"model {candidate.recipe}"):
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("serving.py")),
            artifacts={"bundle": str(candidate.folder)},
            input_example=(["a small dog with long hair"], {"k": 5, "tail": -1.0}),
            pip_requirements=[f"{package}=={metadata.version(package).split('+')[0]}" for package in _SERVING_NEEDS],
            code_paths=[str(Path(__file__).resolve().parents[2] / "xc_core")],
            registered_model_name=name,
        )
    version = int(info.registered_model_version)
    tags = {
        "bundle": candidate.digest,
        "recipe": candidate.recipe,
        TEST: candidate.test,
        "metrics": json.dumps(candidate.metrics),
        **candidate.tags,
    }
    for key, value in tags.items():
        client.set_model_version_tag(name, str(version), key, str(value)[:5000])
    client.update_registered_model(name, _MODEL_PAGE.format(dataset=candidate.dataset))
    client.update_model_version(name, str(version), _version_page(candidate))
    return version


def _version_page(candidate: Candidate) -> str:
    """Return the description of a version: its recipe, and its figures on test documents."""
    figures = ", ".join(
        f"{metric.replace('_at_', '@')} {candidate.metrics[metric]:.2f}"
        for metric in ("P_at_1", "P_at_5", "PSP_at_1", "PSP_at_5")
        if metric in candidate.metrics
    )
    return f"Recipe `{candidate.recipe}`. On test documents, in percent: {figures or 'no figures'}."


def _gate(client: Any, name: str, candidate: Candidate, version: int) -> str:
    """Return why ``version`` may be champion.

    Raises RefusedError if it is worse than the champion by more than ``max_drop`` points of P@5.
    """
    champion = version_of(client, name, CHAMPION)
    if champion is None:
        return "the first one"
    if int(champion.version) == version:
        return "it is already"
    before, where = _precision(client, champion, candidate)
    after = candidate.metrics["P_at_5"]
    if not after >= before - candidate.max_drop:  # also if it is not a number
        raise RefusedError(
            f"P@5 {after:.2f} against {before:.2f} of the champion (version {champion.version}{where})",
            expected=f"at most {candidate.max_drop} points less",
            do="compare both evaluations; promote it by hand with xc promote if that is right",
        )
    return f"P@5 {after:.2f} against {before:.2f} of version {champion.version}{where}"


def _precision(client: Any, champion: Any, candidate: Candidate) -> tuple[float, str]:
    """Return P@5 of the champion on the candidate's test documents, and how it was found.

    If these are the documents that it was evaluated on, the registered figure counts; otherwise it is evaluated again.
    Raises RefusedError if that is impossible.
    """
    then, now = champion.tags.get(TEST), candidate.test
    if candidate.evaluate is None or not then or then == now:
        return float(json.loads(champion.tags.get("metrics", "{}")).get("P_at_5", 0.0)), ""
    try:
        metrics = candidate.evaluate(download(champion))
        return metrics["P_at_5"], ", evaluated again because the test documents have changed"
    except XCError as error:
        raise RefusedError(
            f"other test documents than those of the champion, which cannot be evaluated again ({error.found})",
            expected="a champion whose files exist",
            do=f"{error.do}; or promote by hand with xc promote",
        ) from error


def version_of(client: Any, name: str, alias: str) -> Any | None:
    """Return the model version that an alias points at, None if there is none.

    An error of the server is raised: otherwise the gate would take any model for the first one.
    """
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if not _is_absent(error):
            raise
        return None


def _is_absent(error: MlflowException) -> bool:
    """Return True if MLflow says that a model, a version or an alias does not exist; anything else is a fault."""
    return error.error_code in _ABSENT


def check_version(client: Any, name: str, version: int) -> None:
    """Raise MissingError if ``name`` has no such version."""
    from mlflow.exceptions import MlflowException

    try:
        client.get_model_version(name, str(version))
    except MlflowException as error:
        if not _is_absent(error):
            raise
        have = sorted(int(v.version) for v in client.search_model_versions(f"name = '{name}'"))
        raise MissingError(
            f"no version {version} of {name}",
            expected=f"one of {', '.join(map(str, have))}" if have else "a registered version; there is none yet",
            do="name one of these" if have else "register a recipe's model: xc promote with --recipe",
        ) from error


def set_champion(client: Any, name: str, version: int) -> None:
    """Point champion at ``version`` and previous at the old champion, in an order that always leaves a champion."""
    old = version_of(client, name, CHAMPION)
    if old is not None and int(old.version) != version:
        client.set_registered_model_alias(name, PREVIOUS, old.version)
    client.set_registered_model_alias(name, CHAMPION, str(version))


def roll_back(client: Any, dataset: str) -> tuple[int, int]:
    """Exchange champion and previous; return (new champion, what it replaced).

    Raises MissingError if there is no previous champion.
    """
    name = model_name(dataset)
    champion, previous = version_of(client, name, CHAMPION), version_of(client, name, PREVIOUS)
    if champion is None or previous is None:
        raise MissingError(
            f"no {'champion' if champion is None else 'previous champion'} of {name}",
            expected="a model that was champion before",
            do=f"promote a version instead: xc promote --dataset {dataset} --version N",
        )
    client.set_registered_model_alias(name, CHAMPION, previous.version)
    client.set_registered_model_alias(name, PREVIOUS, champion.version)
    return int(previous.version), int(champion.version)


def bundle_folder(client: Any, dataset: str, alias: str = CHAMPION) -> Path | None:
    """Return a local folder with the packed model that an alias points at, None if there is none.

    Raises MissingError if its files are gone.
    """
    version = version_of(client, model_name(dataset), alias)
    return download(version) if version is not None else None


def download(version: Any) -> Path:
    """Return a local folder with the packed model of a registered version.

    Raises MissingError if its files are gone.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        folder = Path(mlflow.artifacts.download_artifacts(f"models:/{version.name}/{version.version}"))
        return folder / "artifacts" / _bundle_name(folder)
    except (OSError, MlflowException) as error:
        if isinstance(error, MlflowException) and not _is_absent(error):
            raise
        dataset = version.name.removeprefix(model_name(""))
        raise MissingError(
            f"no files of {version.name} version {version.version} ({error})",
            expected=f"the folder that {version.source} names",
            do=f"xc promote --dataset {dataset} --recipe NAME registers its packed model; or xc predict --recipe NAME",
        ) from error


def _bundle_name(folder: Path) -> str:
    from ruamel.yaml import YAML

    content = YAML(typ="safe").load((folder / "MLmodel").read_text("utf-8"))
    return Path(content["flavors"]["python_function"]["artifacts"]["bundle"]["path"]).name
