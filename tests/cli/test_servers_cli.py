"""How a server is set up, joined, listed and examined: `moa-server setup` and `invite`, `moa-client servers` and `doctor`, and README's way
to a server on another machine.
"""

import re
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_client.cli import cli
from moa_client.servers.book import book_path, read_book
from moa_server import settings as moa_server_settings
from moa_server.access.keys import read_key_file
from moa_server.cli import cli as server_cli
from moa_server.commands import serve
from moa_server.setting_up import SetupFolder
from moa_server.settings import ServerSettings
from moa_shared.errors import MoaError
from moa_shared.programs.addresses import Invitation, read_invitation

from tests.cli.client_program import ENVIRONMENT, Run, Served, make_model, options
from tests.support.certificates import Authority
from tests.support.messages import steady
from tests.support.programs import PATIENCE, Program, environment, free_port, started
from tests.support.terminal import opened


@pytest.fixture(autouse=True)
def _own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


pytestmark = pytest.mark.xdist_group("client command line")


def servers(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["servers", *words], input=stdin)


def refusal(result: Result) -> str:
    error = result.exception
    assert isinstance(error, MoaError)
    return steady(str(error))


def test_servers_are_added_chosen_and_removed() -> None:
    assert servers("list").stderr == snapshot("No server is listed. Add one: moa-client servers add NAME HOST:PORT\n")
    assert servers("add", "home", "127.0.0.1:1").stderr == snapshot("home is in use.\n")
    assert servers("add", "work", "gpu.example:443", "--tls").stderr == snapshot(
        "work is listed; chats talk to home, and with /model work to its model. For work alone: moa-client servers use work. For both, where one takes over when another is lost: moa-client servers use home work\n"
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
    def check(words: str, *arguments: str) -> None:
        assert words in refusal(servers(*arguments))

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
    assert run("chat", *rest, "--max-tokens", "8", "--ask", "home", "w10 w11")[:2] == (0, out)
    code, _, err = run("chat", *rest, "--ask", "large", "w10")
    assert (code, "There is no model 'large' here. No answer from gone. Ask for 'tiny'" in err) == (66, True)
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetupFolder:
    """Where the files go unless another folder is named."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(moa_server_settings, "SYSTEM_FILE", tmp_path / "etc/server.toml")
    for name in ("MOA_CONFIG", "MOA_SERVER_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    return SetupFolder(tmp_path / "config/moa/server")


def moa_server(*words: object) -> Result:
    return CliRunner().invoke(server_cli, list(map(str, words)))


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
        assert words in refusal(moa_server(*arguments))

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


def test_keys_are_those_of_the_server_that_setup_has_made(folder: SetupFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[ServerSettings] = []
    monkeypatch.setattr(serve, "run", lambda settings, **_: ran.append(settings))
    moa_server("setup", "gpu.example")
    moa_server("serve")
    moa_server("serve", "--config", folder.settings)
    assert ran[0] == ran[1]
    assert (ran[0].host, ran[0].metrics_host, ran[0].metrics_port) == ("0.0.0.0", "127.0.0.1", 9464)
    assert ran[0].keys_file == folder.keys
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
        assert "it is not known which file of keys it reads" in refusal(moa_server(*words))
        assert "TMP/plain.toml names no file of keys" in refusal(moa_server(*words, "--config", plain))
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
