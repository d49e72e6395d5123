from __future__ import annotations

from pathlib import Path

from moa_client.commands.daemon import given_options


def test_what_was_given_to_one_command_line_can_be_given_to_another() -> None:
    flags = {
        "server": "127.0.0.1:5",
        "offline": False,
        "drafter": None,
        "idle_seconds": "0",
        "allowed_origins": ("https://a.example", "https://b.example"),
        "stop": (),
    }
    assert given_options(flags, Path("/etc/moa.toml")) == [
        *("--config", "/etc/moa.toml"),
        *("--server", "127.0.0.1:5"),
        "--no-offline",
        *("--idle-seconds", "0"),
        *("--allowed-origin", "https://a.example"),
        *("--allowed-origin", "https://b.example"),
    ]
