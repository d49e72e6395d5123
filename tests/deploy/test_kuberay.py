"""The manifests for KubeRay: pods that Kubernetes accepts, fields that KubeRay has, and a command that we have.

No registry has KubeRay's schemas: its fields are listed here from its API reference (1.5.1).
"""

from __future__ import annotations

import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from moa_server.settings import ServerSettings

from tests.deploy.recipes import DEPLOY, last, variables

VERSION = kubernetes_validate.latest_version()


def manifests() -> list[dict[str, Any]]:
    files = sorted((DEPLOY / "kuberay").glob("*.yaml"))
    return [each for path in files for each in yaml.safe_load_all(path.read_text("utf-8"))]


def one(kind: str) -> dict[str, Any]:
    (found,) = [each for each in manifests() if each["kind"] == kind]
    return found


def templates() -> list[dict[str, Any]]:
    spec = one("RayCluster")["spec"]
    return [spec["headGroupSpec"]["template"], *(each["template"] for each in spec["workerGroupSpecs"])]


def test_objects_of_kubernetes_are_valid() -> None:
    ours = [each for each in manifests() if each["apiVersion"] != "ray.io/v1"]
    assert {each["kind"] for each in ours} == {"Service", "NetworkPolicy"}
    for each in ours:
        kubernetes_validate.validate(each, VERSION, strict=True)
    for each in templates():
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **each}, VERSION, strict=True)


def test_the_version_of_ray_is_the_one_that_is_tried() -> None:
    assert one("RayCluster")["spec"]["rayVersion"] == version("ray")


def test_pods_may_do_nothing_but_serve() -> None:
    for template in templates():
        spec = template["spec"]
        (container,) = spec["containers"]
        assert f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" == last(
            "server", "USER"
        )
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {"readinessProbe", "livenessProbe", "startupProbe"} <= container.keys()
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        assert {"/tmp", "/dev/shm", variables("server")["MOA_CACHE_DIR"]} <= mounted
        assert [each["name"] for each in container["volumeMounts"]] == [each["name"] for each in spec["volumes"]]
        assert spec["enableServiceLinks"] is False
        secrets = [each["secret"] for each in spec["volumes"] if "secret" in each]
        assert all(each["defaultMode"] == 0o440 for each in secrets)


def test_objects_find_each_other() -> None:
    labels = templates()[1]["metadata"]["labels"]
    service, policy = one("Service"), one("NetworkPolicy")
    assert service["spec"]["selector"].items() <= labels.items()
    (port,) = service["spec"]["ports"]
    names = {each["name"]: each["containerPort"] for each in templates()[1]["spec"]["containers"][0]["ports"]}
    assert names[port["targetPort"]] == port["port"] == ServerSettings().port
    for template in templates():
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_the_fleet_s_command_is_ours_and_fits_the_workers() -> None:
    command = pytest.importorskip("moa_server.commands.cluster")
    words = shlex.split(one("RayJob")["spec"]["entrypoint"])
    assert words[:3] == ["moa-server", "cluster", "up"]
    given = command.up.make_context("up", words[3:]).params
    (group,) = one("RayCluster")["spec"]["workerGroupSpecs"]
    assert given["min_replicas"] == group["minReplicas"]
    assert given["max_replicas"] + given["surge"] == group["maxReplicas"]
    assert given["cpus"] == float(group["rayStartParams"]["num-cpus"])
    mounts = [each["spec"]["containers"][0]["volumeMounts"] for each in templates()]
    head, worker = ({each["mountPath"] for each in mounted} for mounted in mounts)
    files = {name: str(Path(given[name]).parent) for name in ("tls_cert", "tls_key", "keys_file")}
    assert set(files.values()) <= head
    assert {files["tls_cert"], files["tls_key"]} <= worker
    assert files["keys_file"] not in worker
    assert templates()[1]["spec"]["terminationGracePeriodSeconds"] > float(given["grace_seconds"])
