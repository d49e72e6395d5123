"""The recipe of the images and the compose file: each path, option, variable and port that they name exists."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from moa_server.settings import ServerSettings
from moa_shared.programs.config import settings_of

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


def check_restricted(spec: dict[str, Any]) -> None:
    """The restricted profile of Kubernetes' Pod Security Standards, and a root file system that nobody writes to."""
    pod, (container,) = spec["securityContext"], spec["containers"]
    assert f"{pod['runAsUser']}:{pod['runAsGroup']}" == last("server", "USER")
    assert pod["runAsNonRoot"]
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert spec["enableServiceLinks"] is False  # a Service moa-server would set MOA_SERVER_PORT


IMAGES = ("server", "client", "netsim", "cuda")
OURS = ("server", "netsim", "client")
SERVER = settings_of(ServerSettings)
KEYS = "MOA_KEYS"  # keys themselves, which are no setting


def known_variables() -> set[str]:
    return {
        KEYS,
        *(f"MOA_SERVER_{name.upper()}" for name in SERVER),
        *(each.variable for each in SERVER.values() if each.variable),
    }


def parse(name: str, words: list[str]) -> click.Context:
    """Has a program of ours read its command line, without running it."""
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    module = importlib.import_module(scripts[name].partition(":")[0])
    group: click.Group = getattr(module, "cli", module.main)
    with group.make_context(name, list(words)) as context:
        command_name, command, rest = group.resolve_command(context, list(words))
        assert command is not None
        return command.make_context(command_name, rest, parent=context)


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_what_there_is(image: str) -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last(image, "USER"))
    words = yaml.safe_load(last(image, "CMD"))
    assert words == ["--help"] or parse(program(image), words)
    own = {name for name in variables(image) if name.startswith("MOA_")}
    assert own <= known_variables()


@pytest.mark.parametrize("image", ["server", "cuda"])
def test_a_server_image_names_its_ports(image: str) -> None:
    exposed = [int(port) for port in last(image, "EXPOSE").split()]
    assert exposed == [SERVER["port"].default, int(variables(image)["MOA_SERVER_METRICS_PORT"])]


def test_the_recipe_copies_what_the_context_has() -> None:
    named = set(re.findall(r"^COPY .*?(deploy/\S+)", RECIPE.read_text(), re.MULTILINE))
    assert named
    assert all((CHECKOUT / path).is_file() for path in named)
    kept = [line[1:] for line in Path(CHECKOUT, ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((CHECKOUT / path).exists() for path in kept)
    assert all(any(path.startswith(each) for each in kept) for path in named)


def test_the_compose_file_names_what_there_is() -> None:
    for name, service in read_compose()["services"].items():
        for mounted in service.get("volumes", []):
            source = mounted.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
            else:
                assert source in read_compose()["volumes"]
        assert set(service["networks"]) <= set(read_compose()["networks"])
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == RECIPE
            assert service["image"] == f"moa-{service['build']['target']}"
            assert instructions(service["build"]["target"])


@pytest.mark.parametrize("name", OURS)
def test_the_compose_file_gives_options_that_there_are(name: str) -> None:
    service = read_compose()["services"][name]
    parse(program(name), service["command"])
    given = {each for each in service.get("environment", {}) if each.startswith("MOA_")}
    assert given <= known_variables()


def test_the_services_of_the_compose_file_find_each_other() -> None:
    services = read_compose()["services"]
    link: dict[str, Any] = parse("netsim", services["netsim"]["command"]).params
    assert link["upstream"] == f"server:{SERVER['port'].default}"
    assert services["server"]["ports"][0].endswith(f":{SERVER['port'].default}")
    targets = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    found = [each for config in targets for group in config["static_configs"] for each in group["targets"]]
    assert f"server:{variables('server')['MOA_SERVER_METRICS_PORT']}" in found


UNIT = CHECKOUT / "deploy/systemd/moa-server.service"
EXPOSURE = 2.0  # systemd's own word up to here: OK


@pytest.fixture
def analyze() -> str:
    return shutil.which("systemd-analyze") or cannot_run("needs systemd-analyze")


def test_systemd_takes_the_unit(analyze: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/moa/bin/moa-server", shutil.which("true") or ""))
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_little_is_exposed(analyze: str) -> None:
    command = [analyze, "security", "--no-pager", "--offline=true", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= EXPOSURE


def test_the_server_may_end_its_answers_before_it_is_killed() -> None:
    unit = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))
    compose = read_compose()["services"]["server"]["stop_grace_period"].removesuffix("s")
    assert min(int(unit["TimeoutStopSec"]), int(compose)) > ServerSettings().grace_seconds
    assert int(unit["WatchdogSec"]) > ServerSettings().hang_seconds


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


def test_pods_may_do_nothing_but_serve() -> None:
    for template in templates():
        spec = template["spec"]
        (container,) = spec["containers"]
        check_restricted(spec)
        assert {"readinessProbe", "livenessProbe", "startupProbe"} <= container.keys()
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        assert {"/tmp", "/dev/shm", variables("server")["MOA_CACHE_DIR"]} <= mounted
        assert [each["name"] for each in container["volumeMounts"]] == [each["name"] for each in spec["volumes"]]
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
