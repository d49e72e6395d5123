"""`moa-server setup` and `moa-server invite` as a user meets them; what they lead to is in test_another_machine.py."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_server import settings as moa_server_settings
from moa_server.access.keys import read_key_file
from moa_server.cli import cli
from moa_server.commands import serve
from moa_server.setting_up import SetupFolder
from moa_server.settings import ServerSettings
from moa_shared.errors import MoaError
from moa_shared.programs.addresses import read_invitation

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
    invited = moa_server("invite", "phone", "--expires", "2100-01-31").stderr
    assert steady(invited) == snapshot("""\
The key phone is in TMP/config/moa/keys.toml.
The line above is an invitation; it is shown this once. Send it as you would a password: whoever has it can use this
server, from any number of devices, until 2100-01-31, or until its key is revoked.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke phone --config TMP/config/moa/server/server.toml
""")
    assert list(read_key_file(moved).entries) == ["device", "laptop", "phone"]
    assert "2001:db8::1, gpu.example is valid for a year" in moa_server("setup", "--renew").stderr


def test_what_is_refused(folder: SetupFolder, tmp_path: Path) -> None:
    def check(words: str, *arguments: object) -> None:
        assert words in refusal(*arguments)

    check("Devices must know this machine by some name.", "setup")
    check("'gpu.example:50051' is no name of a host and no IP address.", "setup", "gpu.example:50051")
    check("No configuration of a server was found.", "invite", "laptop")
    check("There is no file TMP/config/moa/server/authority.pem.", "setup", "--renew")
    assert not folder.path.exists()
    moa_server("setup", "gpu.example")
    check("There is a key named device already.", "invite", "device")
    check("'a b' cannot be the name of a key.", "invite", "a b")
    check("--expires is 'yesterday'", "invite", "phone", "--expires", "yesterday")
    check("TMP/config/moa/server holds a server's files already.", "setup", "gpu.example")
    check("server.toml cannot be written: Not a directory.", "setup", "gpu.example", "--folder", folder.settings)
    folder.settings.write_text("[server]\nport = 0\n")
    check("server.toml names no port", "invite", "laptop")
    assert list(read_key_file(folder.keys).entries) == ["device"]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings with which servers were started."""
    started: list[ServerSettings] = []
    monkeypatch.setattr(serve, "run", lambda settings, **_: started.append(settings))
    return started


def test_keys_are_those_of_the_server_that_setup_has_made(folder: SetupFolder, served: list[ServerSettings]) -> None:
    moa_server("setup", "gpu.example")
    moa_server("serve")
    moa_server("serve", "--config", folder.settings)
    assert served[0] == served[1]
    assert (served[0].host, served[0].metrics_host, served[0].metrics_port) == ("0.0.0.0", "127.0.0.1", 9464)
    assert served[0].keys_file == folder.keys
    added = moa_server("keys", "add", "laptop")
    key = added.stdout.strip()
    assert getattr(read_key_file(folder.keys).find(key), "name", "") == "laptop"
    listed, revoked = moa_server("keys", "list"), moa_server("keys", "revoke", "laptop")
    place = "The file of keys is TMP/config/moa/server/keys.toml (from TMP/config/moa/server/server.toml)."
    assert {steady(each.stderr).partition("\n")[0] for each in (added, listed, revoked)} == {place}
    assert revoked.stderr.endswith("The key laptop is revoked.\n")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["name", "device", "laptop"]
    assert read_key_file(folder.keys).find(key) is None


def test_without_a_configuration_no_file_of_keys_is_guessed(folder: SetupFolder, tmp_path: Path) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text("[server]\nport = 1\n")
    commands = [("keys", "add", "laptop"), ("keys", "revoke", "laptop"), ("keys", "list")]
    for words in commands:
        assert "it is not known which file of keys it reads" in refusal(*words)
        assert "TMP/plain.toml names no file of keys" in refusal(*words, "--config", plain)
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
