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
    folder: Path | None = setting(None, "Where it is.")
    model: str = setting("default", "What it reads.", "default|ID|PATH", may_be_path=True)


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
    with pytest.raises(ConfigError, match="is not a setting"):
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


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\nport = 2\n", encoding="utf-8-sig")
    assert load_settings(Example, "server", {}, file, {}).port == 2
