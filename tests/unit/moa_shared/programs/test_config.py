"""Settings from flags, environment and file; the options, tables and command of a settings class."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner
from moa_client.settings import ClientSettings
from moa_server.settings import ServerSettings
from moa_shared.errors import ConfigError, MoaError
from moa_shared.programs.command_line import config_command, settings_options
from moa_shared.programs.config import SettingsBase, load_settings, read_value, setting, settings_of

from tests.support.messages import says


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
    model: str = setting("default", "What it reads.", "default|ID|PATH", may_be_path=True)


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text('[server]\nport = 2\nname = "file"\nstop = ["x"]\n')
    environment = {"MOA_SERVER_PORT": "3", "MOA_SERVER_NAME": "environment", "MOA_CLIENT_PORT": "9"}
    settings = load_settings(Example, "server", {"port": 4, "name": None, "stop": ()}, file, environment)
    assert settings == Example(port=4, name="environment", stop=("x",))


def test_the_file_can_be_named_in_the_environment_and_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\nport = 2\n", encoding="utf-8-sig")
    assert load_settings(Example, "server", {}, None, {"MOA_CONFIG": str(file)}).port == 2


@pytest.mark.parametrize(("flags", "environment", "message"), [
    ({"port": 70000}, {}, "--port is 70000: expected at most 65535"),
    ({}, {"MOA_SERVER_PORT": "x"}, "MOA_SERVER_PORT is 'x': expected a whole number"),
    ({}, {"MOA_SERVER_PROT": "1"}, "MOA_SERVER_PROT is not a setting"),
])  # fmt: skip
def test_bad_values_name_their_source(flags: dict[str, object], environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(Example, "server", flags, None, environment)


@pytest.mark.parametrize(("text", "message"), [
    (None, "The configuration file TMP/moa.toml does not exist. Check the name."),
    ("[server\n", "TMP/moa.toml is not TOML: "),
    ("server = 3\n", "[server] of TMP/moa.toml is not a table. Write [server] above its settings."),
    ("[server]\nprot = 3\n", "prot in [server] of TMP/moa.toml is not a setting. Did you mean port?"),
])  # fmt: skip
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "moa.toml"
    if text is not None:
        file.write_text(text)
    with says(MoaError, message):
        load_settings(Example, "server", {}, file, {})


def test_paths_begin_at_the_current_folder_those_of_a_file_at_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "moa.toml").write_text('[server]\nfolder = "kept"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    assert load_settings(Example, "server", {"folder": Path("kept")}, None, {}).folder == tmp_path / "kept"
    assert load_settings(Example, "server", {}, None, {"EXAMPLE_FOLDER": "kept"}).folder == tmp_path / "kept"
    for named in (tmp_path / "etc" / "moa.toml", Path("etc/moa.toml")):
        assert load_settings(Example, "server", {}, named, {}).folder == tmp_path / "etc" / "kept"
    assert load_settings(Example, "server", {"folder": Path("~/kept")}, None, {}).folder == Path("/home/ada/kept")
    with pytest.raises(ConfigError, match="kept': there is no such user's home"):
        load_settings(Example, "server", {"folder": Path("~nobody-of-this-name/kept")}, None, {})


def test_a_relative_path_needs_a_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="--folder is 'kept': the current folder does not exist any more: give the"):
        load_settings(Example, "server", {"folder": Path("kept")}, None, {})
    assert load_settings(Example, "server", {"folder": Path("/kept")}, None, {}).folder == Path("/kept")


@pytest.mark.parametrize("named", ["there", "./there", "ada/there"])
def test_a_text_that_names_a_file_here_is_its_path(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("there", "ada/there", "default"):
        (tmp_path / each).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert load_settings(Example, "server", {"model": named}, None, {}).model == str(tmp_path / named)
    for other in ("default", "ada/elsewhere", ""):
        assert load_settings(Example, "server", {"model": other}, None, {}).model == other


@pytest.mark.parametrize(("kind", "value", "expected"), [
    (int, "3", 3), (int, " -1_000 ", -1000), (int, "5.0", 5), (float, "1e-3", 0.001), (float, "inf", math.inf),
    (bool, "Yes", True), (bool, "off", False), (str, " as it is ", " as it is "), (str | None, None, None),
    (Path | None, "folder", Path("folder")), (Literal["a", "b"], "b", "b"), (tuple[str, ...], ["a", "b"], ("a", "b")),
    (tuple[str, ...], {"a": "b", "c.1": "d"}, ("a=b", "c.1=d")),
])  # fmt: skip
def test_values_are_read_as_the_type_of_their_field(kind: Any, value: object, expected: object) -> None:
    read = read_value(kind, value)
    assert read == expected
    assert type(read) is type(expected)


@pytest.mark.parametrize(("kind", "value", "message"), [
    (int, "x", "expected a whole number"), (int, "1.5", "expected a whole number"),
    (int, "9" * 5000, "expected a whole number"), (int, True, "expected a whole number"),
    (float, "x", "expected a number"), (bool, "perhaps", "expected on or off"), (str, 3, "expected text in UTF-8"),
    (Path | None, 3, "expected a path"), (Literal["a", "b", "c"], "d", "expected 'a', 'b' or 'c'"),
    (tuple[str, ...], "a", "expected a list"), (tuple[str, ...], [1], "expected text in UTF-8"),
    (tuple[str, ...], {"c": {"1": "d"}}, "expected texts: a name with a dot needs quotes"),
    (str, "caf\udce9", "expected text in UTF-8"), (tuple[str, ...], ["\udce9"], "expected text in UTF-8"),
])  # fmt: skip
def test_what_is_expected_instead(kind: Any, value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_value(kind, value)
    assert str(caught.value) == message


@pytest.mark.parametrize(("limits", "value", "message"), [
    ({"ge": 0}, -1.0, "expected at least 0"), ({"gt": 0}, 0.0, "expected more than 0"),
    ({"ge": 0, "le": 9}, 9.5, "expected at most 9"), ({"lt": 9}, 9.0, "expected less than 9"),
    ({"ge": 0}, math.nan, "expected at least 0"),
])  # fmt: skip
def test_limits(limits: dict[str, float], value: float, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_value(float, value, limits)
    assert str(caught.value) == message


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
        "setting  value     from", "name     there     command line NAME", f"port     7         file {file}",
        "mode     a         default", "ahead    off       command line --no-ahead", "lines    off       default",
        "stop     'x', 'y'  environment MOA_EXAMPLE_STOP", "folder   /models   environment EXAMPLE_FOLDER",
        "share    0.5       default", "model    default   default",
    ]  # fmt: skip
    shown = json.loads(CliRunner().invoke(command, [*options, "--json"]).output)
    assert shown["stop"] == {"value": ["x", "y"], "source": "environment", "name": "MOA_EXAMPLE_STOP"}
    assert shown["mode"] == {"value": "a", "source": "default", "name": None}


@pytest.mark.parametrize("cls", [ClientSettings, ServerSettings])
def test_every_setting_says_what_it_is(cls: type[SettingsBase]) -> None:
    for name, about in settings_of(cls).items():
        assert about.text.endswith("."), name
