"""The systemd unit: what systemd says of it, and an answer of a server under all that it forbids."""

from __future__ import annotations

import ctypes
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from moa_server.settings import SECTION, ServerSettings
from moa_shared.programs.config import settings_of

from tests.deploy.confine import read_unit
from tests.support.programs import CHECKOUT, environment, started
from tests.support.skipping import cannot_run

UNIT = CHECKOUT / "deploy/systemd/moa-server.service"
EXPOSURE = 2.0  # systemd's own word up to here: OK
PR_GET_MDWE = 66
ROOTS = ("proto", "shared", "server", "client", "kernels", ".")


@pytest.fixture
def analyze() -> str:
    return shutil.which("systemd-analyze") or cannot_run("needs systemd-analyze")


@pytest.fixture
def confine(analyze: str) -> list[str]:
    """A command that runs what follows it under the unit."""
    if ctypes.CDLL(None).prctl(PR_GET_MDWE, 0, 0, 0, 0) < 0:
        cannot_run("needs Linux 6.3, to forbid memory that is written and run")
    return [sys.executable, "-m", "tests.deploy.confine", str(UNIT), "--"]


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
    print(f"exposure {found[1]}")
    assert float(found[1]) <= EXPOSURE


def test_the_times_fit_the_settings() -> None:
    unit, settings = read_unit(UNIT), settings_of(ServerSettings)
    assert int(unit["TimeoutStopSec"][0]) > settings["grace_seconds"].default
    assert int(unit["WatchdogSec"][0]) > settings["hang_seconds"].default


FORBIDDEN = """
import mmap, os, socket
def attempt(name, call):
    try:
        call()
    except PermissionError:
        print(name)
attempt("run what was written", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))
attempt("chroot", lambda: os.chroot("/"))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
socket.socket(socket.AF_INET)
os.sched_setaffinity(0, os.sched_getaffinity(0))
"""


def test_what_the_unit_forbids_is_refused_here(confine: list[str]) -> None:
    """So that the test below cannot pass because nothing is confined."""
    command = [*confine, sys.executable, "-c", FORBIDDEN]
    done = subprocess.run(command, env=environment("."), capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("run what was written\nchroot\nnetlink\n", "")


@pytest.mark.long
@pytest.mark.root
@pytest.mark.timeout(240)
def test_an_answer_under_all_that_the_unit_forbids(confine: list[str], tmp_path: Path) -> None:
    """Read-only files but for the cache, no capabilities, filtered system calls, no memory that is written and run."""
    if (
        shutil.which("setpriv") is None
        or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
    ):
        cannot_run("needs root and setpriv, to make a read-only file system")
    cache = tmp_path / "cache"
    cache.mkdir()
    config = tmp_path / "server.toml"
    config.write_text(f'[{SECTION}]\nport = 0\nready_file = "{cache}/ready"\n')
    words = shlex.split(read_unit(UNIT)["ExecStart"][0])
    server = [sys.executable, "-m", "moa_server.cli", *words[1:]]
    server[server.index("/etc/moa/server.toml")] = str(config)
    mounts = f"mount --bind {cache} {cache} && mount -o remount,bind,ro /"
    run = f"{mounts} && exec setpriv --bounding-set=-all --inh-caps=-all {shlex.join([*confine, *server])}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        variables = environment(*ROOTS, NOTIFY_SOCKET=str(tmp_path / "notify"), MOA_CACHE_DIR=str(cache))
        with started(["unshare", "--mount", "sh", "-c", run], variables) as program:
            assert manager.recv(1000).decode().startswith("READY=1\nSTATUS=serving SmolLM2"), program.end()
            assert manager.recv(1000) == b"WATCHDOG=1"
            address = (cache / "ready").read_text().strip()
            client = [sys.executable, "-m", "moa_client.cli", "chat", "--no-daemon", "--server", address, "Hello"]
            home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "client")}
            asked = subprocess.run(client, env={**variables, **home}, capture_output=True, text=True, timeout=100)
            assert asked.returncode == 0, asked.stderr
            assert asked.stdout.strip()
            program.process.terminate()
            assert program.end()[0] == 0
            told = iter(lambda: manager.recv(1000), b"STOPPING=1\nSTATUS=draining")
            assert set(told) <= {b"WATCHDOG=1"}
