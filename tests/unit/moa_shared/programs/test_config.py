from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.config import SettingsBase, load_settings, setting

from tests.support.messages import raises


@dataclass(frozen=True)
class Example(SettingsBase):
    port: int = setting(1, "Where it listens.", ge=0, le=65535)
    host: str = setting("a", "What it is called.")
    stop: tuple[str, ...] = setting((), "Ends it.")


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text('[server]\nport = 2\nhost = "file"\nstop = ["x"]\n')
    environment = {"MOA_SERVER_PORT": "3", "MOA_SERVER_HOST": "environment", "MOA_CLIENT_PORT": "9"}
    settings = load_settings(Example, "server", {"port": 4, "host": None, "stop": ()}, file, environment)
    assert settings == Example(port=4, host="environment", stop=("x",))


def test_the_file_can_be_named_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\nport = 2\n")
    assert load_settings(Example, "server", {}, None, {"MOA_CONFIG": str(file)}).port == 2


def test_lists_in_the_environment_are_separated_by_commas() -> None:
    assert load_settings(Example, "server", {}, None, {"MOA_SERVER_STOP": "a,b"}).stop == ("a", "b")


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (
            {"port": 70000},
            {},
            snapshot(
                "--port is 70000: input should be less than or equal to 65535. See --help for the values allowed."
            ),
        ),
        (
            {},
            {"MOA_SERVER_PORT": "x"},
            snapshot(
                "MOA_SERVER_PORT is 'x': input should be a valid integer, unable to parse string as an integer. See --help for the values allowed."
            ),
        ),
        ({}, {"MOA_SERVER_PROT": "1"}, snapshot("MOA_SERVER_PROT is not a setting. Known settings: host, port, stop.")),
    ],
)
def test_bad_values_name_their_source(flags: dict[str, object], environment: dict[str, str], message: str) -> None:
    with raises(ConfigError, message):
        load_settings(Example, "server", flags, None, environment)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    with raises(NotFoundError, snapshot("The configuration file TMP/moa.toml does not exist. Check the name.")):
        load_settings(Example, "server", {}, file, {})
    file.write_text("[server\n")
    with pytest.raises(ConfigError, match=r"is not TOML: .*line 1"):
        load_settings(Example, "server", {}, file, {})
    file.write_text("server = 3\n")
    with raises(ConfigError, snapshot("[server] of TMP/moa.toml is not a table. Write [server] above its settings.")):
        load_settings(Example, "server", {}, file, {})
    file.write_text("[server]\nprot = 3\n")
    with raises(
        ConfigError, snapshot("prot in [server] of TMP/moa.toml is not a setting. Known settings: host, port, stop.")
    ):
        load_settings(Example, "server", {}, file, {})
