"""`moa-server setup` and `moa-server invite` as a user meets them; what they lead to is in test_another_machine.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_server import settings as moa_server_settings
from moa_server.access.authentication import Gate
from moa_server.access.keys import read_key_file
from moa_server.cli import cli
from moa_server.commands import serve
from moa_server.settings import ServerSettings
from moa_server.setup.folder import SetupFolder
from moa_shared.errors import AuthenticationError, MoaError
from moa_shared.protocol.invitation import read_invitation

from tests.support.messages import steady


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetupFolder:
    """Where the files go unless another folder is named."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(moa_server_settings, "SYSTEM_FILE", tmp_path / "etc/server.toml")
    for name in ("MOA_CONFIG", "MOA_SERVER_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    return SetupFolder(tmp_path / "config/moa/server")


def moa_server(*words: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


def refusal(*words: object) -> str:
    error = moa_server(*words).exception
    assert isinstance(error, MoaError)
    return steady(str(error))


def test_an_invitation_names_the_first_host_and_a_key_of_its_own(folder: SetupFolder) -> None:
    first = read_invitation(moa_server("setup", "2001:db8::1", "gpu.example", "--port", 443).stdout)
    second = read_invitation(moa_server("invite", "laptop").stdout)
    assert (first.address, second.address) == ("[2001:db8::1]:443", "[2001:db8::1]:443")
    assert first.authority == second.authority
    book = read_key_file(folder.keys)
    assert [book.find(each.key).name for each in (first, second)] == ["device", "laptop"]  # type: ignore[union-attr]
    moved = folder.path.parent / "keys.toml"
    folder.keys.rename(moved)
    folder.settings.write_text(folder.settings.read_text().replace(str(folder.keys), str(moved)))
    assert steady(moa_server("invite", "phone").stderr) == snapshot("""\
The key phone is in TMP/config/moa/keys.toml.
The line above is an invitation; it is shown this once. Send it as you would a password: whoever has it can use this
server, from any number of devices, until its key is revoked.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke phone --config TMP/config/moa/server/server.toml
""")
    assert list(read_key_file(moved).entries) == ["device", "laptop", "phone"]
    assert steady(moa_server("setup", "--renew").stderr) == snapshot(
        "The certificate for 2001:db8::1, gpu.example is valid for a year. A running server takes it by itself.\n"
    )


def test_what_is_refused(folder: SetupFolder, tmp_path: Path) -> None:
    assert [
        refusal("setup"),
        refusal("setup", "gpu.example:50051"),
        refusal("invite", "laptop"),
        refusal("setup", "--renew"),
    ] == snapshot(
        [
            "Devices must know this machine by some name. Name it as they reach it: moa-server setup gpu.example, or an IP address.",
            "'gpu.example:50051' is no name of a host and no IP address. Name the server as devices reach it, without port: gpu.example or 192.0.2.7.",
            "No configuration of a server was found. Make one: moa-server setup HOST. Or name your server's: --config FILE.",
            "There is no TMP/config/moa/server/authority.key.pem. Name the folder with --folder, or make one: moa-server setup HOST.",
        ]
    )
    assert not folder.path.exists()
    moa_server("setup", "gpu.example")
    assert [refusal("invite", "device"), refusal("invite", "a b"), refusal("setup", "gpu.example")] == snapshot(
        [
            "There is a key named device already. Choose another name, or revoke it first: moa-server keys revoke device",
            "'a b' cannot be the name of a key. Use at most 40 letters, digits, dots, hyphens and underscores.",
            "TMP/config/moa/server holds a server's files already. Another device: moa-server invite NAME. A new certificate: moa-server setup --renew.",
        ]
    )
    folder.settings.write_text("[server]\nport = 0\n")
    assert refusal("invite", "laptop") == snapshot(
        "TMP/config/moa/server/server.toml names no port, so devices cannot be told one. Write port = 50051 there."
    )
    assert list(read_key_file(folder.keys).entries) == ["device"]
    assert refusal("setup", "gpu.example", "--folder", folder.settings) == snapshot(
        "TMP/config/moa/server/server.toml cannot be written: Not a directory."
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings with which servers were started."""
    started: list[ServerSettings] = []
    monkeypatch.setattr(serve, "run", lambda settings, **_: started.append(settings))
    return started


def caller_with(gate: Gate, key: str) -> str:
    """The name of the key that a server with this gate knows; "": none."""
    gate.refresh()
    try:
        return gate.admit([("authorization", f"Bearer {key}")], "ipv4:127.0.0.1:1").key
    except AuthenticationError:
        return ""


def test_keys_are_those_of_the_server_that_setup_has_made(folder: SetupFolder, served: list[ServerSettings]) -> None:
    moa_server("setup", "gpu.example")
    moa_server("serve")
    moa_server("serve", "--config", folder.settings)
    assert served[0] == served[1]
    assert (served[0].metrics_host, served[0].metrics_port) == ("127.0.0.1", 9464)
    gate = Gate.of(served[0].keys_file)
    added = moa_server("keys", "add", "laptop")
    key = added.stdout.strip()
    assert caller_with(gate, key) == "laptop"
    listed, revoked = moa_server("keys", "list"), moa_server("keys", "revoke", "laptop")
    assert [steady(each.stderr) for each in (added, listed, revoked)] == snapshot(
        [
            """\
The file of keys is TMP/config/moa/server/keys.toml (from TMP/config/moa/server/server.toml).
The key laptop is in it, as a hash; a server that reads this file takes it in within a second. On the device, put the line above into a file that only its user can read: moa-client servers add NAME HOST:PORT --tls --key-file FILE.
""",
            "The file of keys is TMP/config/moa/server/keys.toml (from TMP/config/moa/server/server.toml).\n",
            """\
The file of keys is TMP/config/moa/server/keys.toml (from TMP/config/moa/server/server.toml).
The key laptop is revoked.
""",
        ]
    )
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["name", "device", "laptop"]
    assert caller_with(gate, key) == ""


def test_keys_of_a_server_with_another_configuration(
    folder: SetupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[ServerSettings]
) -> None:
    other = SetupFolder(tmp_path / "other")
    moa_server("setup", "gpu.example")
    moa_server("setup", "cpu.example", "--folder", other.path, "--metrics-port", "9465")
    moa_server("serve", "--config", other.settings)
    gate = Gate.of(served[0].keys_file)
    assert caller_with(gate, moa_server("keys", "add", "a", "--config", other.settings).stdout.strip()) == "a"
    monkeypatch.setenv("MOA_CONFIG", str(other.settings))
    assert caller_with(gate, moa_server("keys", "add", "b").stdout.strip()) == "b"
    assert caller_with(gate, read_invitation(moa_server("invite", "c").stdout).key) == "c"
    monkeypatch.delenv("MOA_CONFIG")
    named = moa_server("keys", "list", "--keys-file", other.keys)
    assert steady(named.stderr) == snapshot("The file of keys is TMP/other/keys.toml (from --keys-file).\n")
    assert list(read_key_file(folder.keys).entries) == ["device"]


def test_without_a_configuration_no_file_of_keys_is_guessed(folder: SetupFolder, tmp_path: Path) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text("[server]\nport = 1\n")
    commands = [("keys", "add", "laptop"), ("keys", "revoke", "laptop"), ("keys", "list")]
    assert {refusal(*words) for words in commands} == snapshot(
        {
            "No configuration of a server was found, so it is not known which file of keys it reads. Make one: moa-server setup HOST. Or name your server's: --config FILE, or --keys-file FILE."
        }
    )
    assert refusal("invite", "laptop") == snapshot(
        "No configuration of a server was found. Make one: moa-server setup HOST. Or name your server's: --config FILE."
    )
    assert {refusal(*words, "--config", plain) for words in commands} == snapshot(
        {
            'TMP/plain.toml names no file of keys, so a server with it asks for no keys. Write keys_file = "FILE" there, or name a file with --keys-file FILE.'
        }
    )
    assert not folder.path.exists()


def test_the_file_of_the_systemd_unit_is_found_where_the_user_has_none(folder: SetupFolder, tmp_path: Path) -> None:
    system = SetupFolder(tmp_path / "etc")
    moa_server("setup", "gpu.example", "--folder", system.path)
    assert ServerSettings.usual_file() == system.settings
    assert read_invitation(moa_server("invite", "laptop").stdout).address == "gpu.example:50051"
    assert moa_server("setup", "--renew", "new.example").exit_code == 0
    assert read_invitation(moa_server("invite", "phone").stdout).address == "new.example:50051"
    moa_server("setup", "gpu.example")
    assert ServerSettings.usual_file() == folder.settings


def test_an_invitation_works_until_its_key_expires_or_is_revoked(folder: SetupFolder) -> None:
    """On any number of devices: the server cannot tell one that was copied."""
    moa_server("setup", "gpu.example")
    gate = Gate.of(folder.keys)
    invited = moa_server("invite", "laptop", "--expires", "2100-01-31")
    key = read_invitation(invited.stdout).key
    assert [caller_with(gate, key), caller_with(gate, key)] == ["laptop", "laptop"]
    assert steady(invited.stderr) == snapshot("""\
The key laptop is in TMP/config/moa/server/keys.toml.
The line above is an invitation; it is shown this once. Send it as you would a password: whoever has it can use this
server, from any number of devices, until 2100-01-31, or until its key is revoked.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke laptop --config TMP/config/moa/server/server.toml
""")
    moa_server("keys", "revoke", "laptop")
    assert caller_with(gate, key) == ""
    assert refusal("invite", "phone", "--expires", "yesterday") == snapshot(
        "--expires is 'yesterday': it is neither a date such as 2027-01-31 nor a number of days."
    )
    assert list(read_key_file(folder.keys).entries) == ["device"]
