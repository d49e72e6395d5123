from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moa_client.commands.daemon import given_options
from moa_client.logs import configure_log, log_file
from moa_client.settings import SECTION, ClientSettings
from moa_shared.errors import ConfigError
from moa_shared.programs.config import load_settings, load_settings_and_origins
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import CHAT_DEFAULTS, Sampling, SamplingDefaults

from tests.support.messages import raises
from tests.support.programs import environment


def load(**flags: object) -> ClientSettings:
    return load_settings(ClientSettings, SECTION, flags, environment={})


def test_settings_become_an_answers_settings() -> None:
    settings = load(temperature=0.5, top_k=3, top_p=0.9, seed=4, max_tokens=7)
    assert settings.options.settings() == AnswerSettings(Sampling(0.5, 3, 0.9, 4), 7, loop_guard=True)


def test_what_is_not_set_is_left_to_the_model() -> None:
    open_ = load().options
    assert (open_.temperature, open_.top_p, open_.top_k, open_.seed) == (None,) * 4
    decided = open_.decided(SamplingDefaults(temperature=0.6, top_k=20), CHAT_DEFAULTS, seed=9)
    assert decided.settings() == AnswerSettings(Sampling(0.6, 20, 0.95, 9), 2048, loop_guard=True)
    assert load(temperature=0).options.decided(CHAT_DEFAULTS).settings().sampling.greedy


@pytest.mark.parametrize("value", [("calculator/add", "add"), ("add",)])
def test_a_tool_without_its_server_is_refused(value: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="expected SERVER/TOOL, such as calculator/add, or all"):
        load(mcp_allow=value)


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
ORIGINS = "origins such as https://app.example or http://localhost:3000"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("server", "local host", "HOST:PORT, such as 127.0.0.1:50051, or a name of `moa-client servers list`"),
        ("server", "localhost:99999", "HOST:PORT, such as 127.0.0.1:50051"),
        ("server", "::1", IN_BRACKETS),
        ("server", "gpu,fe80::1:50051", IN_BRACKETS),
        ("server", "[::1:5", IN_BRACKETS),
        ("allowed-origin", ("https://app.example/",), ORIGINS),
        ("allowed-origin", ("https://app.example", "app.example"), ORIGINS),
        ("endpoint-port", 65536, "less than 65536"),
        ("drafting", "all", "'auto', 'server', 'device' or 'off'"),
        ("temperature", -1, "at least 0"),
        ("top-p", 0, "more than 0"),
        ("seed", 2**64, "less than 18446744073709551616"),
    ],
)
def test_bad_values_are_named(option: str, value: object, expected: str) -> None:
    name = "allowed_origins" if option == "allowed-origin" else option.replace("-", "_")
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


def test_a_file_that_cannot_be_written_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    configure_log()
    LOG.warning("lost")
    assert capsys.readouterr() == ("", "")


def test_the_package_as_a_library_logs_nothing_by_itself() -> None:
    """In a process of its own: another test may have run the program in this one."""
    program = "import logging, moa_client.link; logging.getLogger('moa_client.link').warning('lost')"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment("client"), capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")


def given(flags: dict[str, Any], config_file: Path | None = None, **environment: str) -> list[str]:
    settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, None, environment)
    return given_options(settings, origins, config_file)


def test_what_was_given_to_one_command_line_can_be_given_to_another() -> None:
    flags = {
        "server": "127.0.0.1:5",
        "offline": False,
        "drafter": None,
        "threads": "2",
        "allowed_origins": ("https://a.example", "https://b.example"),
        "mcp_allow": (),
    }
    environment = {"MOA_CLIENT_DRAFTING": "server", "MOA_CLIENT_SERVER": "127.0.0.1:6", "MOA_CLIENT_TEMPERATURE": "1"}
    assert given(flags, Path("/etc/moa.toml"), **environment) == [
        *("--config", "/etc/moa.toml"),
        *("--server", "127.0.0.1:5"),
        *("--drafting", "server"),
        "--no-offline",
        *("--threads", "2"),
        *("--allowed-origin", "https://a.example"),
        *("--allowed-origin", "https://b.example"),
    ]


def test_paths_are_those_of_the_folder_in_which_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    flags = {"mcp": Path("kept"), "drafter": "d.safetensors", "model": "ada/model"}
    assert given(flags, Path("moa.toml")) == [
        *("--config", f"{tmp_path}/moa.toml"),
        *("--model", "ada/model"),
        *("--drafter", f"{tmp_path}/d.safetensors"),
        *("--mcp", f"{tmp_path}/kept"),
    ]
