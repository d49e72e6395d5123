"""Options, tables and the command config of a settings class."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner
from moa_client.settings import ClientSettings
from moa_server.settings import ServerSettings
from moa_shared.programs.command_line import config_command, settings_options
from moa_shared.programs.config import SettingsBase, load_settings, setting, settings_of


@dataclass(frozen=True)
class Example(SettingsBase):
    name: str = setting("here", "What it is called.", flag="NAME")
    port: int = setting(1, "Where it listens.", "PORT", ge=0, le=65535)
    mode: Literal["a", "b"] = setting("a", "How.")
    ahead: bool = setting(True, "Whether.")
    lines: bool = setting(False, "As lines.", flag="--json")
    stop: tuple[str, ...] = setting((), "Ends it.", shown="none")
    folder: Path | None = setting(None, "Where it lies.", "FOLDER", shown="the user's", variable="EXAMPLE_FOLDER")
    share: float = setting(0.5, "How much.", gt=0)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOA_CONFIG", "EXAMPLE_FOLDER"):
        monkeypatch.delenv(name, raising=False)


def given(*arguments: str) -> Example:
    """The settings of a command with these arguments."""
    seen: list[Example] = []

    @click.command
    @settings_options(Example, "example")
    def command(config_file: Path | None, **flags: Any) -> None:
        seen.append(load_settings(Example, "example", flags, config_file, {}))

    result = CliRunner().invoke(command, arguments)
    if result.exception is not None:
        raise result.exception
    return seen[0]


def test_every_field_is_an_option_of_its_type() -> None:
    assert given() == Example()
    options = ["there", "--port", "3", "--mode", "b", "--no-ahead", "--json", "--stop", "x", "--stop", "y"]
    assert given(*options, "--folder", "/f", "--share", "1e-3") == Example(
        name="there", port=3, mode="b", ahead=False, lines=True, stop=("x", "y"), folder=Path("/f"), share=0.001
    )


def test_a_switch_that_is_off_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[example]\nlines = true\nport = 7\n")
    assert given("--config", str(file)) == Example(lines=True, port=7)
    assert given("--config", str(file), "--no-json") == Example(port=7)


def test_help_has_type_text_and_default() -> None:
    @click.command
    @settings_options(Example, "example")
    def command(**flags: Any) -> None: ...

    lines = [" ".join(line.split()) for line in CliRunner().invoke(command, ["--help"]).output.splitlines()]
    assert "--port PORT Where it listens. [default: 1]" in lines
    assert "--mode a|b How. [default: a]" in lines
    assert "--ahead / --no-ahead Whether. [default: on]" in lines
    assert "--stop TEXT Ends it. [default: none]" in lines
    assert "--folder FOLDER Where it lies. [default: the user's]" in lines


def test_config_prints_values_and_where_they_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[example]\nport = 7\n")
    monkeypatch.setenv("MOA_EXAMPLE_STOP", "x,y")
    monkeypatch.setenv("EXAMPLE_FOLDER", "/models")
    command = config_command(Example, "example")
    options = ["there", "--config", str(file), "--no-ahead"]
    assert CliRunner().invoke(command, options).output.splitlines() == [
        "setting  value     from",
        "name     there     command line NAME",
        f"port     7         file {file}",
        "mode     a         default",
        "ahead    off       command line --no-ahead",
        "lines    off       default",
        "stop     'x', 'y'  environment MOA_EXAMPLE_STOP",
        "folder   /models   environment EXAMPLE_FOLDER",
        "share    0.5       default",
    ]
    shown = json.loads(CliRunner().invoke(command, [*options, "--json"]).output)
    assert shown["stop"] == {"value": ["x", "y"], "source": "environment", "name": "MOA_EXAMPLE_STOP"}
    assert shown["mode"] == {"value": "a", "source": "default", "name": None}


@pytest.mark.parametrize("cls", [ClientSettings, ServerSettings])
def test_every_setting_says_what_it_is(cls: type[SettingsBase]) -> None:
    for name, about in settings_of(cls).items():
        assert about.text.endswith("."), name
