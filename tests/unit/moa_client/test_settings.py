"""What the doctor says of a companion."""

import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moa_client.commands.daemon import given_options
from moa_client.device.drafter_catalog import DrafterCandidate, ServerPace
from moa_client.doctor import judge_download, judge_drafts, judge_round_trip
from moa_client.link.security import Security
from moa_client.logs import configure_log, log_file
from moa_client.servers.book import ServerBook, ServerEntry, at_addresses, find_servers, read_book, write_book
from moa_client.settings import SECTION, ClientSettings
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.config import load_settings, load_settings_and_origins
from moa_shared.programs.machine import Check
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import CHAT_DEFAULTS, Sampling

from tests.support.messages import raises, says


def load(**flags: object) -> ClientSettings:
    return load_settings(ClientSettings, SECTION, flags, environment={})


def test_settings_become_an_answers_settings() -> None:
    settings = load(temperature=0.5, top_k=3, top_p=0.9, seed=4, max_tokens=7)
    assert settings.options.settings() == AnswerSettings(Sampling(0.5, 3, 0.9, 4), 7, loop_guard=True)


def test_what_is_not_set_is_left_to_the_model() -> None:
    open_ = load().options
    assert (open_.temperature, open_.top_p, open_.top_k, open_.seed) == (None,) * 4
    decided = open_.decided({"temperature": 0.6, "top_k": 20}, CHAT_DEFAULTS, seed=9)
    assert decided.settings() == AnswerSettings(Sampling(0.6, 20, 0.95, 9), 2048, loop_guard=True)
    assert load(temperature=0).options.decided(CHAT_DEFAULTS).settings().sampling.greedy


@pytest.mark.parametrize("name", ClientSettings.RETIRED)
def test_what_is_gone_is_refused_by_name_wherever_it_is_given(name: str, tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text(f"[client]\n{name} = 1\n")
    for flags, path, variables, label in (
        ({name: "1"}, None, {}, f"--{name.replace('_', '-')}"),
        ({}, file, {}, f"{name} in \\[client\\]"),
        ({}, None, {f"MOA_CLIENT_{name.upper()}": "1"}, f"MOA_CLIENT_{name.upper()}"),
    ):
        with pytest.raises(ConfigError, match=f"{label}.* is not a setting any more.*moa 0.2.0 was the last"):
            load_settings(ClientSettings, SECTION, flags, path, variables)


IN_BRACKETS = "HOST:PORT, with an IPv6 address in brackets, such as [::1]:50051"
ALIAS = "NAME=MODEL, such as gpt-4o-mini=qwen3-4b, with another name than default"
ORIGINS = "origins such as https://app.example or http://localhost:3000"


@pytest.mark.parametrize(("option", "value", "expected"), [
    ("server", "local host", "HOST:PORT, such as 127.0.0.1:50051, or a name of `moa-client servers list`"),
    ("server", "localhost:99999", "HOST:PORT, such as 127.0.0.1:50051"), ("server", "::1", IN_BRACKETS),
    ("server", "gpu,fe80::1:50051", IN_BRACKETS), ("allowed-origin", ("https://app.example", "app.example"), ORIGINS),
    ("alias", ("default=qwen3-4b",), ALIAS), ("alias", ("qwen3-4b",), ALIAS),
    ("endpoint-port", 65536, "less than 65536"), ("top-p", 0, "more than 0"),
    ("seed", 2**64, "less than 18446744073709551616"),
])  # fmt: skip
def test_bad_values_are_named(option: str, value: object, expected: str) -> None:
    name = {"allowed-origin": "allowed_origins", "alias": "aliases"}.get(option, option.replace("-", "_"))
    with raises(ConfigError, f"--{option} is {value!r}: expected {expected}. See --help for the values allowed."):
        load(**{name: value})


LOG = logging.getLogger("moa_client")


@pytest.fixture(autouse=True)
def _log_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = LOG.handlers, LOG.level, LOG.propagate
    yield
    for handler in LOG.handlers:
        handler.close()
    LOG.handlers, LOG.level, LOG.propagate = before


def test_lines_go_to_a_file_alone_which_is_made_with_the_first_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_log()
    LOG.getChild("link.connection").debug("opened")
    assert log_file().is_relative_to(tmp_path / "state")
    assert not log_file().exists()
    LOG.getChild("link.connection").warning("lost")
    [line] = log_file().read_text().splitlines()
    assert line.endswith(": lost")
    assert " WARNING client " in line
    assert capsys.readouterr() == ("", "")


def given(flags: dict[str, Any], config_file: Path | None = None, **environment: str) -> list[str]:
    settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, None, environment)
    return given_options(settings, origins, config_file)


def test_what_was_given_to_one_command_line_can_be_given_to_another() -> None:
    flags = {
        "server": "127.0.0.1:5", "offline": False, "drafter": None, "threads": "2",
        "allowed_origins": ("https://a.example", "https://b.example"), "mcp_allow": (),
    }  # fmt: skip
    environment = {"MOA_CLIENT_DRAFTING": "server", "MOA_CLIENT_SERVER": "127.0.0.1:6", "MOA_CLIENT_TEMPERATURE": "1"}
    assert given(flags, Path("/etc/moa.toml"), **environment) == [
        *("--config", "/etc/moa.toml"), *("--server", "127.0.0.1:5"), *("--drafting", "server"), "--no-offline",
        *("--threads", "2"), *("--allowed-origin", "https://a.example"), *("--allowed-origin", "https://b.example"),
    ]  # fmt: skip


def test_paths_are_those_of_the_folder_in_which_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    flags = {"mcp": Path("kept"), "drafter": "d.safetensors", "model": "ada/model"}
    assert given(flags, Path("moa.toml")) == [
        *("--config", f"{tmp_path}/moa.toml"), *("--model", "ada/model"), *("--drafter", f"{tmp_path}/d.safetensors"),
        *("--mcp", f"{tmp_path}/kept"),
    ]  # fmt: skip


QUICK, DEEP = DrafterCandidate("online", 2.0, 2.4), DrafterCandidate("deep", 4.4, 3.7)
ADAPTS = "The memory sent adapts, and fewer drafts are made: the text is the same, and comes more slowly."
LITTLE = "drafts from here add little, and the server drafts while it has time"


@pytest.mark.parametrize(("check", "message", "hint"), [
    (judge_round_trip(20.0, 0.25), "20.0 ms, the median of 7; 25 % of the server is taken", ""),
    (judge_round_trip(200.0, 0.25), "200.0 ms, ", "Text comes as fast, but begins later: use a nearer server."),
    (
        judge_round_trip(20.0, 0.95), "95 % of the server is taken", "It may refuse: ask later, or add another server.",
    ),
    (judge_download(400_000, 0.5, 10.0), "800 kB/s (400 kB in 0.5 s); text with drafts takes up to 55 kB/s", ""),
    (judge_download(400_000, 8.0, 10.0), "50 kB/s (400 kB in 8 s); text with drafts takes up to 55 kB/s", ADAPTS),
    (judge_download(4_000, 1.0, 0.0), "4 kB/s (4 kB in 1 s)", ""),
    (
        judge_drafts([QUICK], ServerPace(1.0, 1.0, 1.0)),
        "a level of a draft takes 2.0 ms (online); a plain step of the server 1.0 ms, 1000 tokens/s",
        "Drafts from here come too late: give the drafter more --threads.",
    ),
    (judge_drafts([QUICK], ServerPace(0.0, 0.0, 1.0)), "the server does not say how long a step takes", ""),
    (
        judge_drafts([QUICK, DEEP], ServerPace(50.0, 1.0, 20.0)),
        "4.4 ms (deep); a plain step of the server 50.0 ms, 20 tokens/s: about 1.7 times that with drafts from here (deep)",
        "",
    ),
    (judge_drafts([QUICK, DEEP], ServerPace(4.0, 1.0, 200.0)), LITTLE, ""),
])  # fmt: skip
def test_what_a_user_reads(check: Check, message: str, hint: str) -> None:
    assert (check.state, message in check.message, check.hint) == ("warn" if hint else "ok", True, hint)


@pytest.mark.parametrize(("text", "mode", "words"), [
    ("abc-1\n", 0o600, ""),
    *(("abc", mode, "Others can read the key file") for mode in (0o640, 0o604, 0o620)),
    *(
        (text, 0o600, "does not hold one API key.")
        for text in ("", "\n", "two words", "two\nlines", "schlüssel", "x" * 5000)
    ),
    (None, 0o600, "There is no key file"),
])  # fmt: skip
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
    assert (read_book(path), stat.S_IMODE(path.stat().st_mode)) == (BOOK.use(["work", "home"]), 0o600)
    assert list(path.parent.iterdir()) == [path]
    path.write_text(path.read_text("utf-8"), "utf-8-sig")  # as some editors write it
    assert (read_book(path), read_book(tmp_path / "none.toml")) == (BOOK.use(["work", "home"]), ServerBook())


def test_the_first_server_is_in_use_and_a_removed_one_is_not() -> None:
    assert (BOOK.in_use, BOOK.use(["work", "work", "home"]).in_use) == (("home",), ("work", "home"))
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


@pytest.mark.parametrize(("named", "found"), [
    ("", (HOME,)),
    ("work", (WORK,)),
    ("work,10.0.0.1:5,work", (WORK, ServerEntry("", "10.0.0.1:5"))),
    ("gpu.example:443", (WORK,)),  # with its key and certificates, however it is named
])  # fmt: skip
def test_which_servers_are_meant(named: str, found: tuple[ServerEntry, ...]) -> None:
    assert find_servers(ClientSettings(server=named), BOOK) == found


def test_without_a_list_the_server_is_on_this_machine() -> None:
    assert find_servers(ClientSettings(), ServerBook()) == (ServerEntry("", "127.0.0.1:50051"),)
    assert at_addresses(ClientSettings(server="home, work"), (HOME, WORK)).server == "127.0.0.1:50051,gpu.example:443"


def test_the_options_of_tls_are_for_servers_that_are_not_listed() -> None:
    settings = ClientSettings(server="work,10.0.0.1:5", tls_ca=Path("/ca.pem"), insecure=True)
    other = ServerEntry("", "10.0.0.1:5", tls=True, tls_ca=Path("/ca.pem"), insecure=True)
    assert find_servers(settings, BOOK) == (WORK, other)


@pytest.mark.parametrize(("text", "message"), [
    ("use = ", "TMP/servers.toml is not TOML: Invalid value (at end of document). Correct that line, or delete the file."),
    ("use = 1", "TMP/servers.toml must hold a list `use` and tables [servers.NAME]. Correct it, or delete the file."),
    ("[servers.a]", "servers.a.address in TMP/servers.toml: it is missing. Correct it, or remove the server."),
    ("[servers.a]\naddress = 'b'", "servers.a.address in TMP/servers.toml: expected HOST:PORT, such as 127.0.0.1:50051. Correct it, or remove the server."),
    ("[servers.a]\naddress = 'b:1'\nkey = 'x'", "servers.a.key in TMP/servers.toml: it is not a setting of a server; known ones: address, tls, tls_ca, tls_cert, tls_key, insecure, key_file. Correct it, or remove the server."),
    ("[servers.a]\naddress = 'b:1'\nkey_keyring = true", "servers.a.key_keyring in TMP/servers.toml: a key is kept in a file: name it with key_file, and let only its owner read it. Correct it, or remove the server."),
    ("[servers.'a b']\naddress = 'b:1'", "'a b' cannot be the name of a server. Use at most 40 letters, digits, dots, hyphens and underscores."),
])  # fmt: skip
def test_a_damaged_list_is_refused_in_words(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "servers.toml"
    path.write_text(text)
    with raises(ConfigError, message):
        read_book(path)
