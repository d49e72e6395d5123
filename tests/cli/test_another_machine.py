"""The README's way to a server on another machine: set up, serve, join; each side with a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from tests.cli.client_program import make_model
from tests.support.messages import steady
from tests.support.programs import PATIENCE, Program, environment, free_port, started

SERVER_HOST, DEVICE_HOST = "10.83.0.1", "10.83.0.2"
SERVER = [sys.executable, "-m", "moa_server.cli"]
CLIENT = [sys.executable, "-m", "moa_client.cli"]


@dataclass(frozen=True)
class Machine:
    """A side: how its programs are started, and its home."""

    prefix: list[str]
    home: Path
    host: str

    @property
    def environment(self) -> dict[str, str]:
        ours = environment("proto", "shared", "server", "client", "kernels", HOME=str(self.home))
        return {name: value for name, value in ours.items() if not name.startswith(("MOA_", "XDG_"))} | {
            "MOA_CLIENT_DAEMON": "false",
            "MOA_SERVER_DRAFTER": "none",
        }

    def run(self, command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, *command],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=PATIENCE)


@pytest.fixture(params=["loopback", pytest.param("namespaces", marks=pytest.mark.root)])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """The server's and the device's."""
    homes = [tmp_path / "server", tmp_path / "device"]
    for home in homes:
        home.mkdir()
    if request.param == "loopback":
        yield Machine([], homes[0], "127.0.0.1"), Machine([], homes[1], "127.0.0.1")
        return
    names = [f"moa-{os.getpid()}-{side}" for side in ("server", "device")]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, host in zip(names, (SERVER_HOST, DEVICE_HOST), strict=True):
            _ip("-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")  # for the metrics
        server, device = (["ip", "netns", "exec", name] for name in names)
        yield Machine(server, homes[0], SERVER_HOST), Machine(device, homes[1], DEVICE_HOST)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=PATIENCE, stderr=subprocess.DEVNULL)


def settings_of(server: Machine) -> Path:
    return server.home / ".config/moa/server/server.toml"


def wait_until_it_serves(program: Program) -> str:
    return program.out.readline()


def wait_until_keys_are_in_force(program: Program, count: int) -> None:
    next(line for line in program.err if '"keys reloaded"' in line and f'"keys": {count},' in line)


@pytest.mark.long
def test_three_lines_to_a_secure_server(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    server, device = machines
    model, port = make_model(tmp_path / "tiny", 1), free_port()
    made = server.run([*SERVER, "setup", server.host, "--port", str(port), "--metrics-port", "0"])
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("moa1_")
    assert 500 < len(made.stdout) < 900
    assert steady(made.stderr.replace(server.host, "HOST")) == snapshot("""\
The line above is an invitation; it is shown this once. Send it as you would a password: whoever has it can use this
server, from any number of devices, until its key is revoked.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke device --config TMP/server/.config/moa/server/server.toml
To serve: moa-server serve --config TMP/server/.config/moa/server/server.toml
""")
    again = server.run([*SERVER, "setup", server.host])
    host = "127.0.0.1" if server.host == "127.0.0.1" else "0.0.0.0"  # whoever names loopback only serves nobody else
    assert (again.returncode, again.stdout) == (2, "")
    command = [*server.prefix, *SERVER, "serve", str(model)]
    with started(command, server.environment) as serving:
        assert wait_until_it_serves(serving) == f"serving tiny on {host}:{port}\n"
        joined = device.run([*CLIENT, "servers", "join", "gpu"], made.stdout)
        assert (joined.returncode, joined.stderr) == snapshot(
            (
                0,
                """\
gpu is in use.
It serves tiny at int8. To talk to it: moa-client chat
""",
            )
        )
        talked = device.run([*CLIENT, "chat", "--temperature", "0", "--max-tokens", "4", "w10 w11"])
        assert talked.returncode == 0, talked.stderr
        assert len(talked.stdout.split()) == 4

        other = server.run([*SERVER, "invite", "laptop"])
        assert other.returncode == 0, other.stderr
        assert other.stdout != made.stdout
        assert device.run([*CLIENT, "servers", "join", "again"], other.stdout).returncode == 0
        cut = device.run([*CLIENT, "servers", "join", "cut"], made.stdout[:400])
        assert (cut.returncode, "is not whole" in cut.stderr) == (2, True)

        assert server.run([*SERVER, "setup", "--renew"]).returncode == 0
        assert (
            device.run([*CLIENT, "chat", "--temperature", "0", "--max-tokens", "4", "w10 w11"]).stdout == talked.stdout
        )

        added = server.run([*SERVER, "keys", "add", "script"])
        assert added.returncode == 0, added.stderr
        key_file = device.home / "key"
        key_file.write_text(added.stdout)
        key_file.chmod(0o600)
        authority = settings_of(server).with_name("authority.pem")
        where = ["script", f"{server.host}:{port}", "--tls-ca", str(authority), "--key-file", str(key_file)]
        assert device.run([*CLIENT, "servers", "add", *where]).returncode == 0
        ask = [*CLIENT, "chat", "--temperature", "0", "--max-tokens", "4", "w10 w11"]
        wait_until_keys_are_in_force(serving, 3)
        assert device.run([*ask, "--server", "script"]).stdout == talked.stdout
        assert server.run([*SERVER, "keys", "revoke", "script"]).returncode == 0
        assert server.run([*SERVER, "keys", "revoke", "device"]).returncode == 0
        wait_until_keys_are_in_force(serving, 1)
        for name, advice in (("gpu", "moa-client servers join gpu --replace"), ("script", f"write it into {key_file}")):
            refused = device.run([*ask, "--server", name])
            assert (refused.returncode, advice in refused.stderr) == (77, True), refused.stderr
