"""The Kubernetes manifests against Kubernetes' own schemas, and against what the programs really answer to."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from ruamel.yaml import YAML

from pipelines.jobs import GPUS, gpu_tags
from xc_core.cli.predict import predict
from xc_core.cli.predict_files import Share
from xc_core.errors import ConfigError
from xc_core.serve.guard import PATHS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.37.0"
OTHERS = ("dagster.yaml", "workspace.yaml", "kustomization.yaml")
"""Files that are no resources of the cluster."""
JOBS = "jobs"
"""Folder of what is applied by hand."""


def parsed(name: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all((FOLDER / name).read_text("utf-8")))


FILES = [path.relative_to(FOLDER) for path in sorted(FOLDER.rglob("*.yaml")) if path.name not in OTHERS]
RESOURCES = [found for path in FILES for found in parsed(str(path))]
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]["spec"]
    for one in RESOURCES
    if one["kind"] in {"Deployment", "Job"}
}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}
SETTINGS = next(one["data"] for one in RESOURCES if one["kind"] == "ConfigMap")


def names(kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in RESOURCES if one["kind"] == kind}


@pytest.fixture(scope="module")
def schemas() -> Any:
    """Kubernetes' schemas; to import them takes seconds, which a process that only collects tests need not wait for."""
    return import_module("kubernetes_validate")


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_every_resource_is_valid(schemas: Any, resource: dict[str, Any]) -> None:
    schemas.validate(resource, VERSION, strict=True)


def test_a_wrong_field_and_a_wrong_type_are_refused(schemas: Any) -> None:
    for path, value in (("replica", 1), ("replicas", "one")):
        wrong = copy.deepcopy(next(one for one in RESOURCES if one["kind"] == "Deployment"))
        wrong["spec"][path] = value
        with pytest.raises(schemas.ValidationError):
            schemas.validate(wrong, VERSION, strict=True)


def test_every_file_is_applied() -> None:
    (kustomization,) = parsed("kustomization.yaml")
    assert {*kustomization["resources"], *OTHERS, JOBS} == {path.name for path in FOLDER.iterdir()}
    assert kustomization["configMapGenerator"] == [{"name": "xc-dagster", "files": list(OTHERS[:2])}]


@pytest.mark.parametrize("name", PODS)
def test_no_pod_has_more_rights_than_it_needs(name: str) -> None:
    pod, container = PODS[name], CONTAINERS[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert set(container["resources"]) == {"requests", "limits"}
    assert container["image"] == SETTINGS["XC_IMAGE"]
    assert ("serviceAccountName" in pod) is (name in {"xc-webserver", "xc-daemon"})
    assert pod.get("automountServiceAccountToken", True) is ("serviceAccountName" in pod)


def test_the_image_has_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert SETTINGS["XC_IMAGE"].endswith(f":{version}")


def test_secrets_come_from_the_cluster_alone() -> None:
    assert names("Secret") == set(), "a secret in a file would be in git"
    assert not [key for key in SETTINGS if any(word in key for word in ("PASSWORD", "SECRET", "TOKEN", "BACKEND"))]
    taken = {
        name: {one["secretRef"]["name"] for one in container["envFrom"] if "secretRef" in one}
        for name, container in CONTAINERS.items()
    }
    answering = {"xc-serve", "xc-predict-parts", "xc-predict-join"}
    assert taken == {name: {"xc-store"} | ({"xc-database"} if name not in answering else set()) for name in PODS}


def probes(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in ("startup", "liveness", "readiness"):
        if found := CONTAINERS[name].get(f"{kind}Probe"):
            yield kind, found


def test_probes_of_xc_serve_ask_for_what_it_answers() -> None:
    found = dict(probes("xc-serve"))
    paths = {kind: probe["httpGet"]["path"] for kind, probe in found.items()}
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
    assert set(paths.values()) <= set(PATHS)
    command = CONTAINERS["xc-serve"]["command"]
    allowed = command[command.index("--allow-host") + 1]
    for probe in found.values():
        assert probe["httpGet"]["httpHeaders"] == [{"name": "Host", "value": allowed}], "another host is refused"
    assert allowed in names("Service")


@pytest.mark.parametrize("name", sorted(names("Service")))
def test_services_probes_and_commands_agree_on_the_port(name: str) -> None:
    (port,) = CONTAINERS[name]["ports"]
    service = next(one for one in RESOURCES if one["kind"] == "Service" and one["metadata"]["name"] == name)
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    command = CONTAINERS[name]["command"]
    assert command[command.index("--port") + 1] == str(port["containerPort"])
    for _, probe in probes(name):
        assert probe.get("httpGet", {"port": port["name"]})["port"] == port["name"]


def test_the_daemon_runs_once() -> None:
    daemon = next(one for one in RESOURCES if one["metadata"]["name"] == "xc-daemon")
    assert (daemon["spec"]["replicas"], daemon["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_the_settings_of_dagster_differ_in_storage_and_launcher_alone() -> None:
    (own,) = parsed("dagster.yaml")
    base = YAML(typ="safe").load((ROOT / "dagster.yaml").read_text())
    assert own["run_monitoring"].pop("start_timeout_seconds") > base["run_monitoring"].pop("start_timeout_seconds")
    assert {name for name in own | base if own.get(name) != base.get(name)} == {"storage", "run_launcher"}
    assert own["storage"] == YAML(typ="safe").load((ROOT / "deploy/postgres/dagster.yaml").read_text())["storage"]


def said_by(container: dict[str, Any], folder: Path, **environment: str) -> list[str]:
    """Run the command of a container with a program ``xc`` that prints its arguments; return them."""
    (folder / "xc").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', "utf-8")
    (folder / "xc").chmod(0o755)
    command = [*container["command"], *container["args"]]
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(command, env={"PATH": path, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_pods_of_a_prediction_answer_all_parts_of_one_file(tmp_path: Path) -> None:
    job = next(one["spec"] for one in RESOURCES if one["metadata"]["name"] == "xc-predict-parts")
    whole = said_by(CONTAINERS["xc-predict-join"], tmp_path)
    parts = range(job["completions"])
    said = [said_by(CONTAINERS["xc-predict-parts"], tmp_path, JOB_COMPLETION_INDEX=str(part)) for part in parts]
    assert job["completionMode"] == "Indexed"
    assert said == [[*whole, "--part", f"{part + 1}/{len(parts)}"] for part in parts]
    context = predict.make_context("predict", [*whole[1:], *said[0][-2:]])
    assert Share.of(context.params["part"]) == Share(0, len(parts))


# the Job of a run, as the launcher makes it


def job_of_run(monkeypatch: pytest.MonkeyPatch, tags: dict[str, str]) -> dict[str, Any]:
    """Return the Job that Dagster's launcher makes for a run with these tags."""
    dagster_k8s = pytest.importorskip("dagster_k8s", reason="pip install -e '.[kubernetes]'")
    import kubernetes
    from dagster._config import process_config
    from dagster_k8s.job import construct_dagster_k8s_job

    monkeypatch.setattr(kubernetes.config, "load_incluster_config", lambda: None)
    monkeypatch.setenv("XC_IMAGE", SETTINGS["XC_IMAGE"])
    launcher = dagster_k8s.K8sRunLauncher
    config = process_config(launcher.config_type(), parsed("dagster.yaml")[0]["run_launcher"]["config"])
    assert config.success, config.errors
    launcher = launcher(**config.value)
    context = launcher.get_container_context_for_run(dg.DagsterRun(job_name="retrain", tags=tags))
    job = construct_dagster_k8s_job(
        job_config=context.get_k8s_job_config(SETTINGS["XC_IMAGE"], launcher),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run-1",
        user_defined_k8s_config=context.run_k8s_config,
    )
    return dict(kubernetes.client.ApiClient().sanitize_for_serialization(job))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gpus", ["0", "2"])
def test_the_job_of_a_run_is_valid_and_has_the_gpus_that_training_asks_for(
    schemas: Any, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    monkeypatch.setenv(GPUS, gpus)
    job = job_of_run(monkeypatch, gpu_tags())
    schemas.validate(job, VERSION, strict=True)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"].get("nvidia.com/gpu") == (gpus if gpus != "0" else None)
    assert container["image"] == SETTINGS["XC_IMAGE"]
    assert pod["securityContext"]["runAsNonRoot"] is container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["serviceAccountName"] in names("ServiceAccount")
    assert {one["secretRef"]["name"] for one in container["envFrom"] if "secretRef" in one} == {
        "xc-database",
        "xc-store",
    }
    claims = {one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one}
    assert claims == names("PersistentVolumeClaim")
    assert {"name": "project", "mountPath": SETTINGS["XC_ROOT"]} in container["volumeMounts"]


def test_jobs_that_train_ask_for_gpus_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines import jobs

    monkeypatch.setenv(GPUS, "1")
    own = importlib.util.spec_from_file_location("jobs_with_gpus", jobs.__file__)
    assert own is not None
    assert own.loader is not None
    module = importlib.util.module_from_spec(own)
    own.loader.exec_module(module)
    asked = {job.name: "dagster-k8s/config" in (job.tags or {}) for job in module.ALL}
    assert asked == {"prepare": False, "retrain": True, "refresh": True, "compare": False, "drift": False}
    assert not [job.name for job in jobs.ALL if "dagster-k8s/config" in (job.tags or {})], "none without the variable"


@pytest.mark.parametrize(("text", "number"), [("", None), ("00", None), ("02", "2")])
def test_a_number_of_gpus_is_written_as_kubernetes_reads_it(
    monkeypatch: pytest.MonkeyPatch, text: str, number: str | None
) -> None:
    monkeypatch.setenv(GPUS, text)
    tags = [json.loads(value) for value in gpu_tags().values()]
    limits = [{"container_config": {"resources": {"limits": {"nvidia.com/gpu": number}}}}]
    assert tags == (limits if number else [])


@pytest.mark.parametrize("text", ["two", "-1", "2.0", " 2", "２", "9" * 5000])
def test_another_number_of_gpus_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(GPUS, text)
    with pytest.raises(ConfigError, match=f"XC_POD_GPUS='{text[:9]}"):
        gpu_tags()
