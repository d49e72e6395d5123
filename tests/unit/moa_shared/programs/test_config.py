import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from moa_shared.errors import ConfigError, MoaError
from moa_shared.programs.config import SettingsBase, load_settings, read_value, setting

from tests.support.messages import says


@dataclass(frozen=True)
class Example(SettingsBase):
    port: int = setting(1, "Where it listens.", ge=0, le=65535)
    host: str = setting("a", "What it is called.")
    stop: tuple[str, ...] = setting((), "Ends it.")
    folder: Path | None = setting(None, "Where it is.")
    model: str = setting("default", "What it reads.", "default|ID|PATH", may_be_path=True)


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text('[server]\nport = 2\nhost = "file"\nstop = ["x"]\n')
    environment = {"MOA_SERVER_PORT": "3", "MOA_SERVER_HOST": "environment", "MOA_CLIENT_PORT": "9"}
    settings = load_settings(Example, "server", {"port": 4, "host": None, "stop": ()}, file, environment)
    assert settings == Example(port=4, host="environment", stop=("x",))


def test_the_file_can_be_named_in_the_environment_and_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\nport = 2\n", encoding="utf-8-sig")
    assert load_settings(Example, "server", {}, None, {"MOA_CONFIG": str(file)}).port == 2


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"port": 70000}, {}, "--port is 70000: expected at most 65535"),
        ({}, {"MOA_SERVER_PORT": "x"}, "MOA_SERVER_PORT is 'x': expected a whole number"),
        ({}, {"MOA_SERVER_PROT": "1"}, "MOA_SERVER_PROT is not a setting"),
    ],
)
def test_bad_values_name_their_source(flags: dict[str, object], environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(Example, "server", flags, None, environment)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "The configuration file TMP/moa.toml does not exist. Check the name."),
        ("[server\n", "The configuration file TMP/moa.toml is not TOML: "),
        ("server = 3\n", "[server] of TMP/moa.toml is not a table. Write [server] above its settings."),
        ("[server]\nprot = 3\n", "prot in [server] of TMP/moa.toml is not a setting. Did you mean port?"),
    ],
)
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
    assert load_settings(Example, "server", {}, None, {"MOA_SERVER_FOLDER": "kept"}).folder == tmp_path / "kept"
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


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, "3", 3),
        (int, " -1_000 ", -1000),
        (int, "5.0", 5),
        (float, "1e-3", 0.001),
        (float, "inf", math.inf),
        (bool, "Yes", True),
        (bool, "off", False),
        (str, " as it is ", " as it is "),
        (str | None, None, None),
        (Path | None, "folder", Path("folder")),
        (Literal["a", "b"], "b", "b"),
        (tuple[str, ...], ["a", "b"], ("a", "b")),
    ],
)
def test_values_are_read_as_the_type_of_their_field(kind: Any, value: object, expected: object) -> None:
    read = read_value(kind, value)
    assert read == expected
    assert type(read) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "x", "expected a whole number"),
        (int, "1.5", "expected a whole number"),
        (int, "9" * 5000, "expected a whole number"),
        (int, True, "expected a whole number"),
        (float, "x", "expected a number"),
        (bool, "perhaps", "expected on or off"),
        (str, 3, "expected text in UTF-8"),
        (Path | None, 3, "expected a path"),
        (Literal["a", "b", "c"], "d", "expected 'a', 'b' or 'c'"),
        (tuple[str, ...], "a", "expected a list"),
        (tuple[str, ...], [1], "expected text in UTF-8"),
        (str, "caf\udce9", "expected text in UTF-8"),
        (tuple[str, ...], ["\udce9"], "expected text in UTF-8"),
    ],
)
def test_what_is_expected_instead(kind: Any, value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_value(kind, value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("limits", "value", "message"),
    [
        ({"ge": 0}, -1.0, "expected at least 0"),
        ({"gt": 0}, 0.0, "expected more than 0"),
        ({"ge": 0, "le": 9}, 9.5, "expected at most 9"),
        ({"lt": 9}, 9.0, "expected less than 9"),
        ({"ge": 0}, math.nan, "expected at least 0"),
    ],
)
def test_limits(limits: dict[str, float], value: float, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_value(float, value, limits)
    assert str(caught.value) == message
