"""What the project uses of MLflow beyond its interface is there: an upgrade that changes it is seen here."""

from __future__ import annotations

import ast
import re

import mlflow
import pytest
from mlflow import environment_variables
from mlflow.protos.databricks_pb2 import ErrorCode
from mlflow.store.model_registry.dbmodels.models import SqlModelVersion
from mlflow.utils import mlflow_tags, validation

from assets import mlflow_errors, tracking
from assets.mlflow_internals import READ_MARK, Alias, alias_in_sqlite
from assets.release import aliases
from assets.release import versions as released_versions
from assets.release.registry import Released
from tests.assets.conftest import Registry, Store
from tests.source import MODULES, nodes

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_alias_in_the_database_is_that_of_the_registry(versions: Registry, store: Store) -> None:
    """Of other tables or columns nothing is read, and each `xc predict` would import MLflow to ask it."""
    assert alias_in_sqlite(store.uri, versions.name, "champion") is None
    for number in (versions.version(), versions.version()):
        aliases.set_champion(versions.client, versions.name, number)
        assert alias_in_sqlite(store.uri, versions.name, "champion") == Alias(number, versions.digests[number])
    versions.client.delete_model_version_tag(versions.name, "2", "bundle")
    assert alias_in_sqlite(store.uri, versions.name, "champion") == Alias(2, None)


def test_what_mlflow_writes_when_a_version_is_read_is_no_change_of_it(released: Released, store: Store) -> None:
    """Each model would be called damaged after it was read once."""
    folder = released_versions.download(store.client.get_model_version("xc-toy", str(released.version)))
    before, mark = released_versions.digest_around(folder), folder.parents[1] / READ_MARK
    mark.unlink(missing_ok=True)
    mlflow.artifacts.download_artifacts(f"models:/xc-toy/{released.version}")
    assert mark.is_file()
    assert released_versions.digest_around(folder) == before


def test_codes_tags_and_limits_are_those_of_mlflow() -> None:
    codes = {*mlflow_errors._ANSWERS, *mlflow_errors._ABSENT, "UNAUTHENTICATED", "PERMISSION_DENIED"}
    assert codes <= set(ErrorCode.keys())
    assert tracking.NOTE == mlflow_tags.MLFLOW_RUN_NOTE
    assert tracking.PARENT == mlflow_tags.MLFLOW_PARENT_RUN_ID
    assert mlflow_tags.MLFLOW_DATASET_CONTEXT == "mlflow.data.context"
    assert validation.MAX_METRICS_PER_BATCH >= tracking._BATCH
    assert validation.MAX_PARAM_VAL_LENGTH >= 6000 and validation.MAX_PARAMS_TAGS_PER_BATCH >= 100
    assert validation.MAX_DATASET_DIGEST_SIZE >= tracking._DIGEST
    assert validation.MAX_MODEL_REGISTRY_TAG_VALUE_LENGTH >= released_versions._LONGEST_TAG
    assert SqlModelVersion.description.type.length >= released_versions._LONGEST_TAG


def test_mlflow_reads_each_of_its_variables_that_the_code_names() -> None:
    """One that is renamed is ignored: a command would wait for minutes, or print an address with its login."""
    from mlflow.cli import server  # which warns

    texts = {str(node.value) for module in MODULES for node in nodes(module) if isinstance(node, ast.Constant)}
    ours = {text for text in texts if re.fullmatch("MLFLOW_[A-Z_]+", text)}
    theirs = {getattr(variable, "name", None) for variable in vars(environment_variables).values()}
    assert len(ours) > 9
    assert ours <= theirs | {str(option.envvar) for option in server.params}
