"""Values of the Helm chart: what each changes, and what is refused with which words."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from inline_snapshot import snapshot
from moa_server.settings import ServerSettings
from moa_shared.programs.config import settings_of

from tests.deploy.charts import (
    ADAPTER,
    CHART,
    Helm,
    HelmRefuses,
    Object,
    container_of,
    environment_of,
    of_kind,
    pod_of,
)
from tests.deploy.test_prometheus import program
from tests.support.programs import CHECKOUT

pytestmark = pytest.mark.xdist_group("helm")
HEAD = "Error: values don't meet the specifications of the schema(s) in the following chart(s):\nmoa:\n"


def deployment(objects: list[Object]) -> Any:
    (found,) = of_kind(objects, "Deployment")
    return found["spec"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("replicas=two", snapshot("- at '/replicas': got string, want null or integer")),
        ("replicas=-1", snapshot("- at '/replicas': minimum: got -1, want 0")),
        ("replica=3", snapshot("- at '': additional properties 'replica' not allowed")),
        (
            "settings.context_lenght=4096",
            snapshot("- at '/settings': additional properties 'context_lenght' not allowed"),
        ),
        ("settings.max_streams=0", snapshot("- at '/settings/max_streams': minimum: got 0, want 1")),
        (
            "settings.detached_seconds=much",
            snapshot("- at '/settings/detached_seconds': 'much' does not match pattern '^[0-9]*\\\\.?[0-9]+$'"),
        ),
        (
            "settings.execution=int4",
            snapshot("- at '/settings/execution': value must be one of 'auto', 'int8', 'float32', 'bf16'"),
        ),
        ("settings.port=50052", snapshot("- at '/settings': additional properties 'port' not allowed")),
        (
            "podDisruptionBudget.maxUnavailable=0",
            snapshot("- at '/podDisruptionBudget/maxUnavailable': minimum: got 0, want 1"),
        ),
        (
            "cache.size=lots",
            snapshot("- at '/cache/size': 'lots' does not match pattern '^[0-9]+(\\\\.[0-9]+)?(M|G|T|Mi|Gi|Ti)$'"),
        ),
        (
            "service.type=ExternalName",
            snapshot("- at '/service/type': value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'"),
        ),
        (
            "tls.secretName=Not A Name",
            snapshot("- at '/tls/secretName': 'Not A Name' does not match pattern '^[a-z0-9.-]*$'"),
        ),
        (
            "replicas=3,autoscaling.enabled=true",
            snapshot(
                "replicas and autoscaling exclude each other: leave replicas out (replicas: null), or set autoscaling.enabled=false."
            ),
        ),
        (
            "autoscaling.enabled=true,autoscaling.minReplicas=11",
            snapshot("autoscaling.minReplicas (11) is above autoscaling.maxReplicas (10)."),
        ),
        (
            "autoscaling.enabled=true,autoscaling.queueSeconds=,autoscaling.kvShare=",
            snapshot("autoscaling has nothing to look at: set autoscaling.queueSeconds or autoscaling.kvShare."),
        ),
        (
            "gateway.enabled=true",
            snapshot("gateway.enabled needs a Gateway: gateway.parentRefs=[{name: GATEWAY}]."),
        ),
        (
            "gateway.enabled=true,gateway.parentRefs[0].name=public",
            snapshot(
                "The gateway must know which name the replicas' certificate is for: set gateway.backendTls.hostname, or tls.enabled=false where the network protects by itself."
            ),
        ),
        (
            "tls.enabled=false,tls.clientCaSecretName=clients",
            snapshot(
                "Clients show certificates over TLS only: set tls.enabled=true, or leave tls.clientCaSecretName out."
            ),
        ),
    ],
)
def test_values_that_are_refused(helm: Helm, values: str, message: str) -> None:
    with pytest.raises(HelmRefuses) as caught:
        helm.render("default", values)
    words = str(caught.value).removeprefix(HEAD).removesuffix("\n\nUse --debug flag to render out invalid YAML")
    assert re.sub(r"^Error: execution error at \([^)]*\): ", "", words) == message


def test_variables_of_the_server_belong_into_settings(helm: Helm) -> None:
    with pytest.raises(HelmRefuses, match="/extraEnv/0/name"):
        helm.render(given={"extraEnv": [{"name": "MOA_SERVER_PORT", "value": "1"}]})
    name = "OTEL_EXPORTER_OTLP_ENDPOINT"
    objects = helm.render(given={"extraEnv": [{"name": name, "value": "http://otel:4317"}]})
    assert environment_of(objects)[name] == "http://otel:4317"


def test_replicas(helm: Helm) -> None:
    assert deployment(helm.render())["replicas"] == 2
    assert deployment(helm.render("default", "replicas=5"))["replicas"] == 5
    assert deployment(helm.render("default", "replicas=0"))["replicas"] == 0


def test_an_autoscaler_decides_alone(helm: Helm) -> None:
    objects = helm.render("autoscaling")
    assert "replicas" not in deployment(objects)
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 8)
    assert not of_kind(helm.render(), "HorizontalPodAutoscaler")
    one = helm.render("autoscaling", "autoscaling.kvShare=")
    (metric,) = of_kind(one, "HorizontalPodAutoscaler")[0]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == "moa_queue_oldest_seconds"


def test_settings_become_the_server_s(helm: Helm) -> None:
    given = {"kv_bytes": 17179869184, "detached_seconds": 0.25, "memory_check": True, "drafting": "off", "threads": 3}
    found = environment_of(helm.render(given={"settings": given}))
    known = settings_of(ServerSettings)
    assert {name: known[name].read(found[f"MOA_SERVER_{name.upper()}"], Path()) for name in given} == given
    assert (
        environment_of(helm.render("default", "settings.detached_seconds=0.25"))["MOA_SERVER_DETACHED_SECONDS"]
        == "0.25"
    )


def test_the_limit_of_cpu_is_the_number_of_threads(helm: Helm) -> None:
    assert environment_of(helm.render("default", "resources.limits.cpu=6"))["MOA_SERVER_THREADS"] == "6"
    assert "MOA_SERVER_THREADS" not in environment_of(helm.render("default", "resources.limits.cpu=null"))
    found = helm.render("default", "settings.threads=3")
    assert [each["value"] for each in container_of(found)["env"] if each["name"] == "MOA_SERVER_THREADS"] == ["3"]


def test_gpus(helm: Helm) -> None:
    objects = helm.render("gpu")
    assert container_of(objects)["resources"]["limits"] == {"cpu": "8", "memory": "48Gi", "nvidia.com/gpu": 1}
    assert "/dev/shm" not in {each["mountPath"] for each in container_of(objects)["volumeMounts"]}
    several = helm.render("gpu", "gpus=4")  # torch's processes share memory
    assert "/dev/shm" in {each["mountPath"] for each in container_of(several)["volumeMounts"]}
    (volume,) = [each for each in pod_of(several)["spec"]["volumes"] if each["name"] == "shm"]
    assert volume["emptyDir"] == {"medium": "Memory"}


def test_an_end_without_a_pause(helm: Helm) -> None:
    objects = helm.render("default", "drain.preStopSeconds=0,drain.graceSeconds=600")
    assert "lifecycle" not in container_of(objects)
    assert pod_of(objects)["spec"]["terminationGracePeriodSeconds"] == 615


def test_replicas_know_themselves_and_where_the_others_are(helm: Helm) -> None:
    objects = helm.render("direct")
    found = environment_of(objects)
    assert found["MOA_SERVER_ADVERTISE"] == "10.0.0.7:50051"
    scheme, name, port = found["MOA_SERVER_PEERS"].split(":")
    (headless,) = [each for each in of_kind(objects, "Service") if each["spec"].get("clusterIP") == "None"]
    assert (scheme, name) == ("dns", f"{headless['metadata']['name']}.fleet.svc")
    assert int(port) in {each["port"] for each in headless["spec"]["ports"]}
    assert "MOA_SERVER_PEERS" not in environment_of(helm.render())


def test_a_claim_outlives_the_release(helm: Helm) -> None:
    (claim,) = of_kind(helm.render("gpu"), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not of_kind(helm.render("gpu", "cache.existingClaim=models"), "PersistentVolumeClaim")


def test_who_may_call(helm: Helm) -> None:
    def rules(*values: str, given: dict[str, Any] | None = None) -> Any:
        (policy,) = of_kind(helm.render("default", *values, given=given), "NetworkPolicy")
        return policy["spec"]

    assert "from" not in rules()["ingress"][0]
    clients = [{"podSelector": {"matchLabels": {"role": "phone"}}}]
    assert rules(given={"networkPolicy": {"clients": clients}})["ingress"][0]["from"] == clients
    (metrics,) = [rule for rule in rules()["ingress"] if rule["ports"][0]["port"] == "metrics"]
    assert metrics["from"]  # never everybody
    assert len(rules(given={"networkPolicy": {"monitoring": []}})["ingress"]) == 1
    assert [each["port"] for rule in rules()["egress"] for each in rule["ports"]] == [53, 53]
    assert [each["port"] for rule in rules("networkPolicy.allowHttps=true")["egress"] for each in rule["ports"]] == [53, 53, 443]  # fmt: skip
    assert not of_kind(helm.render("default", "networkPolicy.enabled=false"), "NetworkPolicy")


def test_names(helm: Helm) -> None:
    def name(*values: str) -> str:
        return str(of_kind(helm.render("default", *values), "Deployment")[0]["metadata"]["name"])

    assert name() == "home-moa"
    assert name("nameOverride=home") == "home"
    assert name("fullnameOverride=chat") == "chat"
    long = helm.render("default", f"fullnameOverride={'a' * 80}")
    assert all(len(each["metadata"]["name"]) <= 63 for each in long)


def adapter_rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((CHART / f"examples/{ADAPTER}.yaml").read_text("utf-8"))
    rules: list[dict[str, Any]] = found["rules"]["custom"]
    return rules


def test_the_adapter_has_the_metrics_that_the_autoscaler_looks_at(helm: Helm) -> None:
    (scaler,) = of_kind(helm.render("autoscaling"), "HorizontalPodAutoscaler")
    wanted = [each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"]]
    assert [rule["name"]["as"] for rule in adapter_rules()] == wanted


def test_the_adapter_s_rules_give_what_they_say(tmp_path: Path) -> None:
    """Prometheus itself evaluates them over two replicas, of which one is busy."""
    labels = {name: f'namespace="fleet",pod="{name}",job="moa"' for name in ("a", "b")}
    held = {"moa_queue_oldest_seconds": (0, 1), "moa_kv_running_bytes": (200, 900), "moa_kv_budget_bytes": (1000, 1000)}
    rules = [
        {
            "record": rule["name"]["as"] + ":custom",
            "expr": rule["metricsQuery"]
            .replace("<<.GroupBy>>", "pod")
            .replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
            .replace("<<.LabelMatchers>>", 'namespace="fleet",pod=~"a|b"'),
        }
        for rule in adapter_rules()
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "adapter", "rules": rules}]}))
    series = [
        {"series": f"{name}{{{labels[pod]}}}", "values": f"{value}x10"}
        for name, values in held.items()
        for pod, value in zip("ab", values, strict=True)
    ]
    expected = {"moa_queue_oldest_seconds:custom": (0, 1), "moa_kv_running_share:custom": (0.2, 0.9)}
    tests = [
        {
            "expr": name,
            "eval_time": "2m",
            "exp_samples": [{"labels": f'{name}{{pod="{pod}"}}', "value": value} for pod, value in zip("ab", values, strict=True)],
        }
        for name, values in expected.items()
    ]  # fmt: skip
    case = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [{"interval": "15s", "input_series": series, "promql_expr_test": tests}]}  # fmt: skip
    (tmp_path / "case.yml").write_text(json.dumps(case))
    done = subprocess.run([program("promtool"), "test", "rules", "case.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_adapter_s_series_are_metrics_of_the_server() -> None:
    page = (CHECKOUT / "docs/operations.md").read_text("utf-8")
    used = set(re.findall(r"moa_\w+", " ".join(each["seriesQuery"] + each["metricsQuery"] for each in adapter_rules())))
    assert used
    assert all(f"| `{name}` |" in page for name in used)


def test_the_notes_make_the_secrets_that_replicas_mount(helm: Helm, tmp_path: Path) -> None:
    notes = helm.call("install", "default").split("NOTES:\n")[1]
    program = [sys.executable, "-m", "moa_server.cli"]
    subprocess.run([*program, "setup", "moa.test", "--folder", tmp_path / "moa-setup"], check=True, capture_output=True, timeout=60)  # fmt: skip
    made: dict[str, set[str]] = {}
    for line in re.findall(r"^ *kubectl (.* create secret .*)$", notes, re.MULTILINE):
        words = line.replace("moa-setup/", f"{tmp_path}/moa-setup/").split()
        secret = json.loads(helm.kubectl(*words, "--dry-run=client", "--output=json"))
        assert secret["metadata"]["namespace"] == "fleet"
        assert all(base64.b64decode(value) for value in secret["data"].values())
        made[secret["metadata"]["name"]] = set(secret["data"])
    assert made == {"home-moa-tls": {"tls.crt", "tls.key"}, "home-moa-keys": {"keys.toml"}}
    mounted = {each["secret"]["secretName"] for each in pod_of(helm.render())["spec"]["volumes"] if "secret" in each}
    assert mounted == made.keys()


def test_the_notes_warn_of_what_is_open(helm: Helm) -> None:
    notes = helm.call("install", "plain").split("NOTES:\n")[1]
    assert notes.count("WARNING:") == 2
    assert "create secret" not in notes
    behind = "Behind a gateway all clients have one address"
    values = ["gateway.enabled=true", "gateway.parentRefs[0].name=g", "gateway.backendTls.hostname=moa.test"]
    assert behind in helm.call("install", "default", *values)
    assert behind not in helm.call("install", "gateway")


def test_the_schema_has_the_server_s_settings() -> None:
    done = subprocess.run([sys.executable, CHECKOUT / "deploy/helm/schema.py", "--check"], capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
