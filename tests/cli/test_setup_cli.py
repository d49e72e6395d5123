"""`moa-server setup` and `moa-server invite` as a user meets them; what they lead to is in test_another_machine.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_server.access.key_file import read_key_file
from moa_server.cli import cli
from moa_server.setup.folder import SetupFolder
from moa_shared.errors import MoaError
from moa_shared.protocol.invitation import read_invitation

from tests.support.messages import steady


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetupFolder:
    """Where the files go unless another folder is named."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
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
The line above is an invitation for one device: send it as you would a password. It is shown this once.
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
            "There is no TMP/config/moa/server/server.pem. Name the folder with --folder, or make one: moa-server setup HOST.",
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
