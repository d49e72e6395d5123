"""The README's way to a server on another machine: set up, serve, join; each side with a home of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from tests.cli.client_program import make_model
from tests.support.messages import steady
from tests.support.programs import PATIENCE, Program, environment, free_port, started

HOST = "127.0.0.1"
SERVER = [sys.executable, "-m", "moa_server.cli"]
CLIENT = [sys.executable, "-m", "moa_client.cli"]
ASK = ["chat", "--temperature", "0", "--max-tokens", "4", "w10 w11"]


class Machine:
    """A side: its program, and its home."""

    def __init__(self, program: list[str], home: Path) -> None:
        home.mkdir()
        self.home = home
        self.program = program
        ours = environment("proto", "shared", "server", "client", "kernels", HOME=str(home))
        plain = {name: value for name, value in ours.items() if not name.startswith(("MOA_", "XDG_"))}
        self.environment = plain | {"MOA_CLIENT_DAEMON": "false", "MOA_SERVER_DRAFTER": "none"}

    def run(self, *words: str, text: str = "", code: int = 0) -> tuple[str, str]:
        """Standard output and standard error."""
        done = subprocess.run(
            [*self.program, *words], env=self.environment, input=text, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr


def wait_until_keys_are_in_force(program: Program, count: int) -> None:
    next(line for line in program.err if '"keys reloaded"' in line and f'"keys": {count},' in line)


@pytest.mark.long
def test_three_lines_to_a_secure_server(tmp_path: Path) -> None:
    server, device = Machine(SERVER, tmp_path / "server"), Machine(CLIENT, tmp_path / "device")
    model, port = make_model(tmp_path / "tiny", 1), free_port()
    invitation, said = server.run("setup", HOST, "--port", str(port), "--metrics-port", "0")
    assert invitation.startswith("moa1_")
    assert 500 < len(invitation) < 900
    assert steady(said) == snapshot("""\
The line above is an invitation; it is shown this once. Send it as you would a password: whoever has it can use this
server, from any number of devices, until its key is revoked.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke device --config TMP/server/.config/moa/server/server.toml
To serve: moa-server serve --config TMP/server/.config/moa/server/server.toml
""")
    assert server.run("setup", HOST, code=2)[0] == ""
    with started([*SERVER, "serve", str(model)], server.environment) as serving:
        assert serving.out.readline() == f"serving tiny on {HOST}:{port}\n"
        _, joined = device.run("servers", "join", "gpu", text=invitation)
        assert joined == "gpu is in use.\nIt serves tiny at int8. To talk to it: moa-client chat\n"
        talked, _ = device.run(*ASK)
        assert len(talked.split()) == 4

        other, _ = server.run("invite", "laptop")
        assert other != invitation
        device.run("servers", "join", "again", text=other)
        assert "is not whole" in device.run("servers", "join", "cut", text=invitation[:400], code=2)[1]
        server.run("setup", "--renew")
        assert device.run(*ASK)[0] == talked

        key_file = device.home / "key"
        key_file.write_text(server.run("keys", "add", "script")[0])
        key_file.chmod(0o600)
        authority = server.home / ".config/moa/server/authority.pem"
        where = ["script", f"{HOST}:{port}", "--tls-ca", str(authority), "--key-file", str(key_file)]
        device.run("servers", "add", *where)
        wait_until_keys_are_in_force(serving, 3)
        assert device.run(*ASK, "--server", "script")[0] == talked
        server.run("keys", "revoke", "script")
        server.run("keys", "revoke", "device")
        wait_until_keys_are_in_force(serving, 1)
        for name, advice in (("gpu", "moa-client servers join gpu --replace"), ("script", f"write it into {key_file}")):
            assert advice in device.run(*ASK, "--server", name, code=77)[1]
