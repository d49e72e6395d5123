from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moa_client.commands.daemon import given_options
from moa_client.settings import SECTION, ClientSettings
from moa_shared.programs.config import load_settings_and_origins


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
        "stop": (),
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
    flags = {"history_dir": Path("kept"), "drafter": "d.safetensors", "model": "ada/model"}
    assert given(flags, Path("moa.toml")) == [
        *("--config", f"{tmp_path}/moa.toml"),
        *("--model", "ada/model"),
        *("--drafter", f"{tmp_path}/d.safetensors"),
        *("--history-dir", f"{tmp_path}/kept"),
    ]
