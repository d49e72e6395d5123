"""The user's servers, and their API keys: from a private file, and only where nobody can read them on the way."""

import stat
from pathlib import Path

import pytest
from moa_client.link.security import Security
from moa_client.servers.book import ServerBook, ServerEntry, at_addresses, find_servers, read_book, write_book
from moa_client.settings import ClientSettings
from moa_shared.errors import ConfigError, NotFoundError

from tests.support.messages import raises, says


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("abc-1\n", 0o600, ""),
        *(("abc", mode, "Others can read the key file") for mode in (0o640, 0o604, 0o620)),
        *(
            (text, 0o600, "does not hold one API key.")
            for text in ("", "\n", "two words", "two\nlines", "schlüssel", "x" * 5000)
        ),
        (None, 0o600, "There is no key file"),
    ],
)
def test_a_key_is_in_a_private_file(tmp_path: Path, text: str | None, mode: int, words: str) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    entry = ServerEntry("work", "gpu.example:443", tls=True, key_file=path)
    if words:
        with pytest.raises((ConfigError, NotFoundError), match=words):
            _ = entry.key
    else:
        assert entry.key == "abc-1"


def test_what_leaves_this_machine_is_encrypted() -> None:
    for open_to_all in (Security(), Security(key="abc"), Security(key="abc", insecure=True)):
        for here in ("127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1"):
            open_to_all.check(here)
        for beyond in ("10.0.0.1:1", "localhost.example:1", "[::2]:1", "0.0.0.0:1"):
            with pytest.raises(ConfigError, match="without encryption"):
                open_to_all.check(beyond)
            Security(tls=True, key="abc").check(beyond)
            Security(insecure=True).check(beyond)


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
    path.write_text(path.read_text("utf-8"), "utf-8-sig")  # as some editors write it
    assert read_book(path) == BOOK.use(["work", "home"])
    assert read_book(tmp_path / "none.toml") == ServerBook()


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
