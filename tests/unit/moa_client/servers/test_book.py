"""The user's list of servers: what is written is read again, and nobody else can read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.servers.book import ServerBook, ServerEntry, at_addresses, find_servers, read_book, write_book
from moa_client.settings import ClientSettings
from moa_shared.errors import ConfigError, NotFoundError

from tests.support.messages import raises

HOME = ServerEntry("home", "127.0.0.1:50051")
WORK = ServerEntry("work", "gpu.example:443", tls=True, tls_ca=Path("/etc/wörk.pem"), key_keyring=True)
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
        with raises(
            NotFoundError,
            snapshot(
                "There is no server named wrok. There are: home, work, o.t-h_er. An address has a port: wrok:50051."
            ),
        ):
            change()
    with raises(
        NotFoundError,
        snapshot(
            "There is no server named home. Add it first: moa-client servers add NAME HOST:PORT. An address has a port: home:50051."
        ),
    ):
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
        ("[servers.a]\naddress = 'b:1'\nkey = 'x'", "servers.a.key in TMP/servers.toml: it is not a setting of a server; known ones: address, tls, tls_ca, tls_cert, tls_key, insecure, key_file, key_keyring. Correct it, or remove the server."),
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
