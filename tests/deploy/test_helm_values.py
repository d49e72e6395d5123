"""Values of the Helm chart: what each changes, and what is refused with which words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
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
)
from tests.support.programs import CHECKOUT

pytestmark = pytest.mark.xdist_group("helm")


def deployment(objects: list[Object]) -> Any:
    (found,) = of_kind(objects, "Deployment")
    return found["spec"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("replicas=-1", "at '/replicas': minimum: got -1, want 0"),
        ("replica=3", "additional properties 'replica' not allowed"),
        ("settings.context_lenght=4096", "additional properties 'context_lenght' not allowed"),
        ("settings.max_streams=0", "at '/settings/max_streams': minimum: got 0, want 1"),
        ("settings.detached_seconds=much", "'much' does not match pattern"),
        ("settings.execution=int4", "value must be one of 'auto', 'int8', 'float32', 'bf16'"),
        ("settings.port=50052", "additional properties 'port' not allowed"),
        ("cache.size=lots", "'lots' does not match pattern"),
        ("tls.secretName=Not A Name", "'Not A Name' does not match pattern"),
        ("replicas=3,autoscaling.enabled=true", "replicas and autoscaling exclude each other"),
        ("autoscaling.enabled=true,autoscaling.minReplicas=11", "minReplicas (11) is above autoscaling.maxReplicas"),
        ("autoscaling.enabled=true,autoscaling.queueSeconds=,autoscaling.kvShare=", "has nothing to look at"),
        ("gateway.enabled=true", "gateway.enabled needs a Gateway"),
        ("gateway.enabled=true,gateway.parentRefs[0].name=public", "set gateway.backendTls.hostname"),
        ("tls.enabled=false,tls.clientCaSecretName=clients", "Clients show certificates over TLS only"),
    ],
)
def test_values_that_are_refused(helm: Helm, values: str, words: str) -> None:
    with pytest.raises(HelmRefuses) as caught:
        helm.render("default", values)
    assert words in str(caught.value)


def test_variables_of_the_server_belong_into_settings(helm: Helm) -> None:
    with pytest.raises(HelmRefuses, match="/extraEnv/0/name"):
        helm.render(given={"extraEnv": [{"name": "MOA_SERVER_PORT", "value": "1"}]})
    name = "OTEL_EXPORTER_OTLP_ENDPOINT"
    objects = helm.render(given={"extraEnv": [{"name": name, "value": "http://otel:4317"}]})
    assert environment_of(objects)[name] == "http://otel:4317"


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


def test_replicas_know_themselves_and_where_the_others_are(helm: Helm) -> None:
    objects = helm.render("direct")
    found = environment_of(objects)
    assert found["MOA_SERVER_ADVERTISE"] == "10.0.0.7:50051"
    scheme, name, port = found["MOA_SERVER_PEERS"].split(":")
    (headless,) = [each for each in of_kind(objects, "Service") if each["spec"].get("clusterIP") == "None"]
    assert (scheme, name) == ("dns", f"{headless['metadata']['name']}.fleet.svc")
    assert int(port) in {each["port"] for each in headless["spec"]["ports"]}
    assert "MOA_SERVER_PEERS" not in environment_of(helm.render())


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


def adapter_rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((CHART / f"examples/{ADAPTER}.yaml").read_text("utf-8"))
    rules: list[dict[str, Any]] = found["rules"]["custom"]
    return rules


def test_the_adapter_has_the_metrics_that_the_autoscaler_looks_at(helm: Helm) -> None:
    (scaler,) = of_kind(helm.render("autoscaling"), "HorizontalPodAutoscaler")
    wanted = [each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"]]
    assert [rule["name"]["as"] for rule in adapter_rules()] == wanted


def test_the_adapter_s_series_are_metrics_of_the_server() -> None:
    page = (CHECKOUT / "docs/operations.md").read_text("utf-8")
    used = set(re.findall(r"moa_\w+", " ".join(each["seriesQuery"] + each["metricsQuery"] for each in adapter_rules())))
    assert used
    assert all(f"| `{name}` |" in page for name in used)


def test_the_schema_has_the_server_s_settings() -> None:
    done = subprocess.run([sys.executable, CHECKOUT / "deploy/helm/schema.py", "--check"], capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
