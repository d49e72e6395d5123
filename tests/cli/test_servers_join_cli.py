"""`moa-client servers join` as a user meets it: an invitation from a file, a pipe and a terminal."""

from __future__ import annotations

import ssl
import stat
import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.servers.book import ServerEntry, book_path, read_book
from moa_client.servers.keys import new_key
from moa_shared.protocol.invitation import Invitation

from tests.cli.client_program import ENVIRONMENT, Run
from tests.support.secure_server import authority
from tests.support.terminal import Terminal

KEY = "moa_ab12_" + "s" * 43
CERTIFICATE = ssl.PEM_cert_to_DER_cert(authority().certificate.decode())
GONE = Invitation("127.0.0.1:1", KEY, CERTIFICATE)


@pytest.fixture(autouse=True)
def _own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def test_a_server_that_is_away_is_listed_and_the_user_told(run: Run) -> None:
    code, _, err = run("servers", "join", "home", stdin=GONE.line())
    assert (code, err) == snapshot(
        (
            69,
            """\
home is in use.
Error: There is no moa server at home (127.0.0.1:PORT): the connection was refused. Check --server HOST:PORT, and that moa-server runs there.
""",
        )
    )
    entry = read_book().find("home")
    assert (entry.address, entry.tls) == ("127.0.0.1:1", True)
    assert entry.tls_ca is not None
    assert ssl.PEM_cert_to_DER_cert(entry.tls_ca.read_text()) == CERTIFICATE
    assert entry.key_file is not None
    assert entry.key_file.read_text() == f"{KEY}\n"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (entry.tls_ca, entry.key_file, entry.tls_ca.parent)] == [
        0o600,
        0o600,
        0o700,
    ]
    run("servers", "remove", "home")
    assert not list(entry.tls_ca.parent.iterdir())


def test_only_the_files_of_an_invitation_are_removed_with_a_server(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(authority().certificate)
    run("servers", "add", "home", "127.0.0.1:1", "--tls-ca", own)
    run("servers", "remove", "home")
    assert own.exists()


def test_a_second_server_is_not_in_use(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "invitation"
    file.write_text(GONE.line())
    run("servers", "add", "desk", "127.0.0.1:1")
    assert run("servers", "join", "home", file)[2].splitlines()[0] == snapshot(
        "home is listed; chats talk to desk. For home alone: moa-client servers use home. For both, where one takes over when another is lost: moa-client servers use desk home"
    )
    assert read_book().in_use == ("desk",)


def test_a_server_of_that_name_is_replaced_only_if_the_user_says_so(run: Run, tmp_path: Path) -> None:
    run("servers", "join", "home", stdin=GONE.line())
    before = read_book().find("home")
    assert before.key_file is not None
    other = Invitation("127.0.0.1:2", "other_" + KEY)
    code, _, err = run("servers", "join", "home", stdin=other.line())
    assert (code, err) == snapshot(
        (
            2,
            "Error: home is listed already, as 127.0.0.1:PORT. Choose another name, or replace it and its key: moa-client servers join home --replace.\n",
        )
    )
    assert (read_book().find("home"), before.key_file.read_text()) == (before, f"{KEY}\n")
    run("servers", "join", "home", "--replace", stdin=other.line())
    assert read_book().find("home").address == "127.0.0.1:2"
    assert [path.read_text() for path in before.key_file.parent.iterdir()] == [f"{other.key}\n"]
    own = tmp_path / "own.key"
    own.write_text("own")
    own.chmod(0o600)
    assert run("servers", "add", "home", "127.0.0.1:3", "--key-file", own)[2] == snapshot("""\
home is changed; it was 127.0.0.1:PORT.
home is in use.
""")
    assert list(before.key_file.parent.iterdir()) == []


def test_what_to_do_about_a_refused_key_depends_on_where_it_is(run: Run, tmp_path: Path) -> None:
    run("servers", "join", "home", stdin=GONE.line())
    own = ServerEntry("work", "gpu.example:443", key_file=Path("/keys/work"))
    entries = [
        read_book().find("home"),
        own,
        ServerEntry("work", "gpu.example:443"),
        ServerEntry("", "gpu.example:443"),
    ]
    assert [new_key(entry) for entry in entries] == snapshot(
        [
            "Ask the operator for another invitation (moa-server invite NAME), then: moa-client servers join home --replace.",
            "Ask the operator for another key, and write it into /keys/work.",
            "Ask the operator for a key, then add the server again with its options and --key-file FILE: moa-client servers add work gpu.example:443 ...",
            "",
        ]
    )


def test_what_is_no_invitation_changes_nothing(run: Run, tmp_path: Path) -> None:
    wrong = [
        ("", "home"),
        (GONE.line()[:-1], "home"),
        (GONE.line(), "a b"),
        (Invitation("gpu.example", KEY, CERTIFICATE).line(), "home"),
        (Invitation("127.0.0.1:1", "two words", CERTIFICATE).line(), "home"),
        (Invitation("127.0.0.1:1", KEY, b"no certificate").line(), "home"),
    ]
    assert [run("servers", "join", name, stdin=line)[2] for line, name in wrong] == snapshot(
        [
            "Error: There is no invitation. Paste the whole line that `moa-server setup` or `moa-server invite` has printed.\n",
            "Error: The invitation is not whole: letters are missing or changed. Paste the whole line that `moa-server setup` or `moa-server invite` has printed.\n",
            "Error: 'a b' cannot be the name of a server. Use at most 40 letters, digits, dots, hyphens and underscores.\n",
            "Error: The invitation's address is 'gpu.example': expected HOST:PORT, such as 127.0.0.1:50051. Ask the operator for another one: moa-server invite NAME.\n",
            "Error: The invitation does not hold one API key. It must be one line of ASCII without spaces.\n",
            "Error: The invitation's certificate cannot be read. Ask the operator for another one: moa-server invite NAME.\n",
        ]
    )
    assert run("servers", "join", "home", tmp_path / "none")[2] == snapshot(
        "Error: There is no file TMP/none. Name the one that holds the invitation.\n"
    )
    assert not book_path().parent.exists()


def test_a_long_line_is_pasted_into_a_terminal(tmp_path: Path) -> None:
    """Longer than what a terminal takes by itself."""
    line = Invitation("127.0.0.1:1", KEY, CERTIFICATE * 10).line()
    assert len(line) > 4096
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    program = Terminal([sys.executable, "-m", "moa_client.cli", "servers", "join", "home"], ENVIRONMENT | home)
    try:
        program.wait_for("Invitation:")
        program.type(line + "\r")
        program.wait_for("home is in use.")
    finally:
        program.close()
