"""`moa-client servers` as a user meets it: the list, and a chat that talks to the servers in use."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_client.cli import cli
from moa_client.servers.book import book_path, read_book
from moa_shared.errors import MoaError

from tests.cli.client_program import Run, Served, options
from tests.support.messages import steady

pytestmark = pytest.mark.xdist_group("client command line")


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


def test_what_cannot_be_added(tmp_path: Path) -> None:
    (tmp_path / "open").write_text("abc")
    (tmp_path / "open").chmod(0o644)
    key_file = str(tmp_path / "open")
    assert [
        refusal("add", "a b", "127.0.0.1:1"),
        refusal("add", "a", "127.0.0.1"),
        refusal("add", "a", "gpu.example:1", "--key-file", key_file),
        refusal("add", "a", "gpu.example:1", "--tls", "--key-file", key_file),
        refusal("add", "a", "gpu.example:1", "--key-keyring", "--key-file", key_file),
        refusal("add", "a", "gpu.example:1"),
        refusal("add", "a", "gpu.example:1", "--tls-ca", str(tmp_path / "none.pem")),
        refusal("use", "a"),
    ] == snapshot(
        [
            "'a b' cannot be the name of a server. Use at most 40 letters, digits, dots, hyphens and underscores.",
            "The address is '127.0.0.1': expected HOST:PORT, such as 127.0.0.1:50051.",
            "The API key for gpu.example:1 would be sent without encryption. Add the server with --tls or --tls-ca FILE, or without a key.",
            "Others can read the key file TMP/open. Protect it: chmod 600 TMP/open",
            "A key is in a file or in the keyring, not in both. Give one of the two options.",
            "Conversations with gpu.example:1 would cross the network without encryption. Use TLS if the server has it (--tls, or --tls-ca FILE); or accept with --insecure that others on the way read and change them. A listed server takes these options when it is added.",
            "There is no file TMP/none.pem. Name another with --tls-ca.",
            "There is no server named a. Add it first: moa-client servers add NAME HOST:PORT. An address has a port: a:50051.",
        ]
    )
    assert not book_path().exists()


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
    found = json.loads(servers("list", "--json").output)
    assert found[0].pop("rtt_ms") > 0
    assert json.loads(steady(json.dumps(found))) == snapshot(
        [
            {
                "name": "home",
                "address": "127.0.0.1:PORT",
                "in_use": True,
                "tls": False,
                "key": None,
                "model": "tiny",
                "load": 0.0,
                "error": None,
            },
            {
                "name": "gone",
                "address": "127.0.0.1:PORT",
                "in_use": False,
                "tls": False,
                "key": None,
                "model": None,
                "rtt_ms": None,
                "load": None,
                "error": "There is no moa server at gone (127.0.0.1:PORT): the connection was refused.",
            },
        ]
    )


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
    assert (code, err) == (
        66,
        snapshot("Error: There is no server named hom. There are: gone, home. An address has a port: hom:50051.\n"),
    )
