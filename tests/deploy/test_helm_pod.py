"""The chart's pod in a container: as its security context, its environment and its Secrets have it on Kubernetes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.deploy.charts import Helm, Object, container_of, environment_of, pod_of
from tests.deploy.containers import PATIENCE, Container, running
from tests.deploy.engine import Engine
from tests.support.programs import free_port

# One worker has the store, and builds once.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("images"), pytest.mark.timeout(1800)]


@pytest.fixture
def volumes() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="moa-test-volumes-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def mount_secret(folder: Path, files: Mapping[str, bytes], mode: int, group: int, generation: int = 1) -> None:
    """Writes a Secret as the kubelet does: files of root for the pod's group, behind a link that is replaced."""
    data = folder / f"..{generation}"
    data.mkdir(parents=True)
    for name, content in files.items():
        (data / name).write_bytes(content)
        os.chown(data / name, 0, group)
        (data / name).chmod(mode)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..new").symlink_to(data.name)
    (folder / "..new").rename(folder / "..data")


def pod_options(objects: list[Object], volumes: Path, **environment: str) -> tuple[str, ...]:
    """podman's options for what the pod's specification says."""
    spec = pod_of(objects)["spec"]
    context = spec["securityContext"]
    options = ["--user", f"{context['runAsUser']}:{context['runAsGroup']}"]
    for name, value in (environment_of(objects) | environment).items():
        options += ["--env", f"{name}={value}"]
    for mount in container_of(objects)["volumeMounts"]:
        if mount["mountPath"] != "/tmp":  # every container of these tests has it
            access = "ro" if mount.get("readOnly") else "rw"
            options += ["--volume", f"{volumes / mount['name']}:{mount['mountPath']}:{access}"]
    return tuple(options)


def await_log(server: Container, words: str) -> None:
    began = time.monotonic()
    while words not in server.log():
        assert time.monotonic() - began < PATIENCE, server.log()


def test_a_pod_serves_with_its_secrets_and_takes_new_ones_over(images: Engine, helm: Helm, volumes: Path) -> None:
    objects = helm.render()
    setup = volumes / "setup"
    program = [sys.executable, "-m", "moa_server.cli"]
    subprocess.run([*program, "setup", "moa.test", "--folder", setup], check=True, capture_output=True, timeout=60)
    group = pod_of(objects)["spec"]["securityContext"]["fsGroup"]
    modes = {
        each["name"]: each["secret"]["defaultMode"] for each in pod_of(objects)["spec"]["volumes"] if "secret" in each
    }
    pair = {"tls.crt": (setup / "server.pem").read_bytes(), "tls.key": (setup / "server.key.pem").read_bytes()}
    keys = {"keys.toml": (setup / "keys.toml").read_bytes()}
    mount_secret(volumes / "tls", pair, modes["tls"], group)
    mount_secret(volumes / "keys", keys, modes["keys"], group)
    (volumes / "cache").mkdir()
    os.chown(volumes / "cache", 0, group)
    (volumes / "cache").chmod(0o2777)

    ports = {"MOA_SERVER_PORT": str(free_port()), "MOA_SERVER_METRICS_PORT": str(free_port())}
    with running(images, "server", options=pod_options(objects, volumes, **ports)) as server:
        server.await_healthy()
        subprocess.run([*program, "keys", "add", "phone", "--keys-file", setup / "keys.toml"], check=True, capture_output=True, timeout=60)  # fmt: skip
        mount_secret(volumes / "keys", {"keys.toml": (setup / "keys.toml").read_bytes()}, modes["keys"], group, 2)
        await_log(server, "keys reloaded")
        assert server.stop() == 0
        assert '"stopped"' in server.log()
