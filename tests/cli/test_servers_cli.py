"""`moa-client servers` and `doctor` as a user meets them: the list, invitations, and a chat that talks to the servers in use."""

from __future__ import annotations

import re
import ssl
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_client.cli import cli
from moa_client.servers.book import book_path, read_book
from moa_shared.errors import MoaError
from moa_shared.programs.addresses import Invitation

from tests.cli.client_program import ENVIRONMENT, Run, Served, options
from tests.support.certificates import Authority
from tests.support.messages import steady
from tests.support.terminal import opened


@pytest.fixture(autouse=True)
def _own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def servers(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["servers", *words], input=stdin)


def refusal(*words: str) -> str:
    error = servers(*words).exception
    assert isinstance(error, MoaError)
    return steady(str(error))


@pytest.mark.xdist_group("client command line")
def test_servers_are_added_chosen_and_removed() -> None:
    assert servers("list").stderr == snapshot("No server is listed. Add one: moa-client servers add NAME HOST:PORT\n")
    assert servers("add", "home", "127.0.0.1:1").stderr == snapshot("home is in use.\n")
    assert servers("add", "work", "gpu.example:443", "--tls").stderr == snapshot(
        "work is listed; chats talk to home. For work alone: moa-client servers use work. For both, where one takes over when another is lost: moa-client servers use home work\n"
    )
    assert servers("use", "work", "home").stderr == snapshot("In use: work, home.\n")
    assert book_path().read_text() == snapshot("""\
# Written by `moa-client servers`.
use = ["work", "home"]

[servers."home"]
address = "127.0.0.1:1"

[servers."work"]
address = "gpu.example:443"
tls = true
""")
    assert stat.S_IMODE(book_path().stat().st_mode) == 0o600
    assert servers("remove", "work").stderr == snapshot("work is removed.\n")
    assert read_book().in_use == ("home",)


@pytest.mark.xdist_group("client command line")
def test_what_cannot_be_added(tmp_path: Path) -> None:
    def check(words: str, *arguments: str) -> None:
        assert words in refusal(*arguments)

    (tmp_path / "open").write_text("abc")
    (tmp_path / "open").chmod(0o644)
    key_file = ["--key-file", str(tmp_path / "open")]
    check("'a b' cannot be the name of a server.", "add", "a b", "127.0.0.1:1")
    check("The address is '127.0.0.1': expected HOST:PORT", "add", "a", "127.0.0.1")
    check("would be sent without encryption. Add the server with --tls", "add", "a", "gpu.example:1", *key_file)
    check("Others can read the key file TMP/open.", "add", "a", "gpu.example:1", "--tls", *key_file)
    check("--key-keyring is gone: keys are kept in files.", "add", "a", "gpu.example:1", "--key-keyring")
    check("would cross the network without encryption", "add", "a", "gpu.example:1")
    check("There is no file TMP/none.pem.", "add", "a", "gpu.example:1", "--tls-ca", str(tmp_path / "none.pem"))
    check("There is no server named a.", "use", "a")
    assert not book_path().exists()


@pytest.mark.xdist_group("client command line")
def test_the_list_says_what_each_server_serves_now(served: Served) -> None:
    servers("add", "home", served.address)
    servers("add", "gone", "127.0.0.1:1")
    shown = re.sub(r"[\d.]+ ms +", "N ms  ", servers("list").output).replace(f"{served.address:<15}", "127.0.0.1:PORT ")
    assert re.sub(r" +\n", "\n", shown) == snapshot("""\
   name  address          TLS  key   model      round trip  taken
*  home  127.0.0.1:PORT   no   none  tiny       N ms  0 %
   gone  127.0.0.1:1      no   none  no answer
   There is no moa server at gone (127.0.0.1:1): the connection was refused.
""")


@pytest.mark.xdist_group("client command line")
def test_a_chat_talks_to_the_server_in_use_and_to_named_ones(run: Run, served: Served) -> None:
    servers("add", "gone", "127.0.0.1:1")
    servers("add", "home", served.address)
    servers("use", "home")
    rest = options(served)[2:]  # without --server
    code, out, err = run("chat", *rest, "--max-tokens", "8", "w10 w11")
    assert (code, bool(out), "left out" in err) == (0, True, False)
    for named in ("home", "gone,home", f"gone,{served.address}"):
        code, again, err = run("chat", *rest, "--max-tokens", "8", "--server", named, "w10 w11")
        assert (code, again) == (0, out)
        assert ("gone (127.0.0.1:PORT) is left out for now: " in err) is ("gone" in named)
    code, _, err = run("chat", *rest, "--server", "hom", "w10")
    assert (code, "There is no server named hom. There are: gone, home." in err) == (66, True)


KEY = "moa_ab12_" + "s" * 43
CERTIFICATE = ssl.PEM_cert_to_DER_cert(Authority().certificate.decode())
GONE = Invitation("127.0.0.1:1", KEY, CERTIFICATE)


def test_a_server_that_is_away_is_listed_and_replaced_only_if_the_user_says_so(run: Run, tmp_path: Path) -> None:
    code, _, err = run("servers", "join", "home", stdin=GONE.line())
    assert code == 69
    assert err.startswith("home is in use.\nError: There is no moa server at home (127.0.0.1:PORT)")
    before = read_book().find("home")
    assert (before.address, before.tls) == ("127.0.0.1:1", True)
    assert before.tls_ca is not None
    assert before.key_file is not None
    folder = before.tls_ca.parent
    assert ssl.PEM_cert_to_DER_cert(before.tls_ca.read_text()) == CERTIFICATE
    assert [stat.S_IMODE(path.stat().st_mode) for path in (before.tls_ca, before.key_file)] == [0o600] * 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    other = Invitation("127.0.0.1:2", "other_" + KEY)
    code, _, err = run("servers", "join", "home", stdin=other.line())
    assert (code, "home is listed already, as 127.0.0.1:PORT." in err) == (2, True)
    assert (read_book().find("home"), before.key_file.read_text()) == (before, f"{KEY}\n")
    run("servers", "join", "home", "--replace", stdin=other.line())
    assert read_book().find("home").address == "127.0.0.1:2"
    assert [path.read_text() for path in folder.iterdir()] == [f"{other.key}\n"]
    own = tmp_path / "own.key"
    own.write_text("own")
    own.chmod(0o600)
    said = "home is changed; it was 127.0.0.1:PORT.\nhome is in use.\n"
    assert run("servers", "add", "home", "127.0.0.1:3", "--key-file", own)[2] == said
    run("servers", "join", "other", stdin=GONE.line())
    run("servers", "remove", "other")
    assert list(folder.iterdir()) == []


def test_what_is_no_invitation_changes_nothing(run: Run) -> None:
    for line, words in (
        ("", "An invitation begins with moa1_, this text does not. Paste the whole line"),
        (GONE.line()[:-1], "The invitation is not whole: letters are missing or changed."),
        (Invitation("gpu.example", KEY, CERTIFICATE).line(), "address is 'gpu.example': expected HOST:PORT"),
        (Invitation("127.0.0.1:1", "two words", CERTIFICATE).line(), "does not hold one API key"),
        (Invitation("127.0.0.1:1", KEY, b"no certificate").line(), "certificate cannot be read"),
    ):
        assert words in run("servers", "join", "home", stdin=line)[2]
    assert "'a b' cannot be the name of a server." in run("servers", "join", "a b", stdin=GONE.line())[2]
    assert not book_path().parent.exists()


def test_a_long_line_is_pasted_into_a_terminal(tmp_path: Path) -> None:
    """Longer than what a terminal takes by itself."""
    line = Invitation("127.0.0.1:1", KEY, CERTIFICATE * 10).line()
    assert len(line) > 4096
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    command = [sys.executable, "-m", "moa_client.cli", "servers", "join", "home"]
    with opened(command, ENVIRONMENT | home) as program:
        program.wait_for("Invitation:")
        program.type(line + "\r")
        program.wait_for("home is in use.")


STEPS = ["server", "TLS", "round trip", "download", "drafter", "companion", "drafts"]


@pytest.mark.xdist_group("client command line")
def test_a_doctor_sees_whether_the_drafter_is_here_and_exits_as_the_first_failure_does(
    run: Run, served: Served
) -> None:
    code, out, _ = run("doctor", "--server", served.address)
    assert (code, out.splitlines()[0]) == (0, served.address)
    assert "warn  drafter      not here yet: " in out
    assert "The first chat fetches " in out
    run("chat", "--server", served.address, "--max-tokens", "2", "w10")
    code, out, _ = run("doctor", "--server", served.address)
    assert (code, re.findall(r"^  (?:ok|warn) +(\S+(?: \S+)?)  ", out, re.MULTILINE)) == (0, STEPS)
    run("servers", "add", "gone", "127.0.0.1:1")
    run("servers", "add", "home", served.address)
    run("servers", "use", "home", "gone")
    code, out, _ = run("doctor")
    titles = [line for line in out.splitlines() if line and line[0] != " "]
    assert (code, titles) == (69, [f"home ({served.address})", "gone (127.0.0.1:1)"])  # the first failure's
    assert run("doctor", "--server", "home", "--model", "nothing.gguf")[0] == 66
