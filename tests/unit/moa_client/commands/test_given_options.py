from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moa_client.commands.given_options import given_options
from moa_client.settings import SECTION, ClientSettings
from moa_shared.programs.config import load_settings


def given(flags: dict[str, Any], config_file: Path | None = None) -> list[str]:
    return given_options(load_settings(ClientSettings, SECTION, flags, None, {}), flags, config_file)


def test_what_was_given_to_one_command_line_can_be_given_to_another() -> None:
    flags = {
        "server": "127.0.0.1:5",
        "offline": False,
        "drafter": None,
        "idle_seconds": "0",
        "allowed_origins": ("https://a.example", "https://b.example"),
        "stop": (),
    }
    assert given(flags, Path("/etc/moa.toml")) == [
        *("--config", "/etc/moa.toml"),
        *("--server", "127.0.0.1:5"),
        "--no-offline",
        *("--idle-seconds", "0.0"),
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
        *("--history-dir", f"{tmp_path}/kept"),
        *("--drafter", f"{tmp_path}/d.safetensors"),
        *("--model", "ada/model"),
    ]
