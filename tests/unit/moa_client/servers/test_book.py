"""The user's servers, and their API keys: from a private file, and only where nobody can read them on the way."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.link.security import Security
from moa_client.servers.book import ServerBook, ServerEntry, at_addresses, find_servers, read_book, write_book
from moa_client.settings import ClientSettings
from moa_shared.errors import ConfigError, NotFoundError

from tests.support.messages import raises, says


def key_file(folder: Path, text: str, mode: int = 0o600) -> ServerEntry:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return ServerEntry("work", "gpu.example:443", tls=True, key_file=path)


def test_a_key_from_a_private_file(tmp_path: Path) -> None:
    assert key_file(tmp_path, "abc-1\n").key == "abc-1"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with raises(ConfigError, snapshot("Others can read the key file TMP/key. Protect it: chmod 600 TMP/key")):
        _ = key_file(tmp_path, "abc", mode).key


@pytest.mark.parametrize("text", ["", "\n", "two words", "two\nlines", "schlüssel", "x" * 5000])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    with says(ConfigError, "The key file TMP/key does not hold one API key."):
        _ = key_file(tmp_path, text).key


def test_a_key_file_that_is_gone(tmp_path: Path) -> None:
    entry = key_file(tmp_path, "abc")
    assert entry.key_file is not None
    entry.key_file.unlink()
    with raises(NotFoundError, snapshot("There is no key file TMP/key. Add the server again with its key.")):
        _ = entry.key


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
        ("[::2]:1", False),
        ("0.0.0.0:1", False),
    ],
)
def test_what_leaves_this_machine_is_encrypted(address: str, is_here: bool) -> None:
    Security(tls=True, key="abc").check(address)
    Security(insecure=True).check(address)
    for open_to_all in (Security(), Security(key="abc"), Security(key="abc", insecure=True)):
        if is_here:
            open_to_all.check(address)
        else:
            with pytest.raises(ConfigError, match="without encryption"):
                open_to_all.check(address)


def test_a_key_is_in_no_message() -> None:
    security = Security(tls=True, key="abc-secret")
    assert security.metadata() == (("authorization", "Bearer abc-secret"),)
    assert "secret" not in repr(security)


HOME = ServerEntry("home", "127.0.0.1:50051")
WORK = ServerEntry("work", "gpu.example:443", tls=True, tls_ca=Path("/etc/wörk.pem"), key_file=Path("/k"))
OTHER = ServerEntry("o.t-h_er", "[::1]:50051", key_file=Path('/tmp/a "key"'))
BOOK = ServerBook().add(HOME).add(WORK).add(OTHER)


def test_what_is_written_is_read_again_and_private(tmp_path: Path) -> None:
    path = tmp_path / "moa" / "servers.toml"
    write_book(BOOK.use(["work", "home"]), path)
    assert read_book(path) == BOOK.use(["work", "home"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert read_book(tmp_path / "none.toml") == ServerBook()


def test_a_list_that_was_edited_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "servers.toml"
    write_book(BOOK, path)
    path.write_text(path.read_text("utf-8"), "utf-8-sig")
    assert read_book(path) == BOOK


def test_the_first_server_is_in_use_and_a_removed_one_is_not() -> None:
    assert BOOK.in_use == ("home",)
    assert BOOK.use(["work", "work", "home"]).in_use == ("work", "home")
    assert BOOK.remove("home") == ServerBook((WORK, OTHER))
    changed = ServerEntry("home", "10.0.0.1:1")
    assert BOOK.add(changed).find("home") is changed


def test_names_that_are_not_listed_are_refused() -> None:
    for change in (
        lambda: BOOK.use(["home", "wrok"]),
        lambda: BOOK.remove("wrok"),
        lambda: find_servers(ClientSettings(server="wrok"), BOOK),
    ):
        with says(NotFoundError, "There is no server named wrok."):
            change()
    with says(NotFoundError, "There is no server named home."):
        ServerBook().find("home")


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("", (HOME,)),
        ("work", (WORK,)),
        ("work,10.0.0.1:5,work", (WORK, ServerEntry("", "10.0.0.1:5"))),
        ("gpu.example:443", (WORK,)),  # with its key and certificates, however it is named
    ],
)
def test_which_servers_are_meant(named: str, found: tuple[ServerEntry, ...]) -> None:
    assert find_servers(ClientSettings(server=named), BOOK) == found


def test_without_a_list_the_server_is_on_this_machine() -> None:
    assert find_servers(ClientSettings(), ServerBook()) == (ServerEntry("", "127.0.0.1:50051"),)
    assert at_addresses(ClientSettings(server="home, work"), (HOME, WORK)).server == "127.0.0.1:50051,gpu.example:443"


def test_the_options_of_tls_are_for_servers_that_are_not_listed() -> None:
    settings = ClientSettings(server="work,10.0.0.1:5", tls_ca=Path("/ca.pem"), insecure=True)
    other = ServerEntry("", "10.0.0.1:5", tls=True, tls_ca=Path("/ca.pem"), insecure=True)
    assert find_servers(settings, BOOK) == (WORK, other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("use = ", "TMP/servers.toml is not TOML: Invalid value (at end of document). Correct that line, or delete the file."),
        ("use = 1", "TMP/servers.toml must hold a list `use` and tables [servers.NAME]. Correct it, or delete the file."),
        ("more = 1", "TMP/servers.toml must hold a list `use` and tables [servers.NAME]. Correct it, or delete the file."),
        ("[servers.a]", "servers.a.address in TMP/servers.toml: it is missing. Correct it, or remove the server."),
        ("[servers.a]\naddress = 'b'", "servers.a.address in TMP/servers.toml: expected HOST:PORT, such as 127.0.0.1:50051. Correct it, or remove the server."),
        ("[servers.a]\naddress = 'b:1'\nkey = 'x'", "servers.a.key in TMP/servers.toml: it is not a setting of a server; known ones: address, tls, tls_ca, tls_cert, tls_key, insecure, key_file. Correct it, or remove the server."),
        ("[servers.a]\naddress = 'b:1'\nkey_keyring = true", "servers.a.key_keyring in TMP/servers.toml: a key is kept in a file: name it with key_file, and let only its owner read it. Correct it, or remove the server."),
        ("[servers.'a b']\naddress = 'b:1'", "'a b' cannot be the name of a server. Use at most 40 letters, digits, dots, hyphens and underscores."),
    ],
)  # fmt: skip
def test_a_damaged_list_is_refused_in_words(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "servers.toml"
    path.write_text(text)
    with raises(ConfigError, message):
        read_book(path)


def test_a_name_in_use_that_is_gone_from_the_file_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "servers.toml"
    path.write_text("use = ['gone', 'a']\n[servers.a]\naddress = 'b:1'\n")
    assert read_book(path).in_use == ("a",)
