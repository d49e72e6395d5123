"""Makes what starts the daemon at login: a systemd user unit, or a launchd agent. Pure but for writing it."""

from __future__ import annotations

import plistlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import ConfigError

LABEL = "moa-client"
SYSTEMD = """\
[Unit]
Description=moa client: link, drafter and conversations
Documentation=man:moa-client-daemon(1)

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=2
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """A file that makes a login start the daemon."""

    path: Path
    text: str
    command: str

    def write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.text)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror or error}.", hint="See --print for its text."
            ) from error


def make_unit(platform: str, python: str, options: Sequence[str], home: Path | None = None) -> Unit:
    """The unit for this kind of machine. `home`: of the user; None: this one's."""
    home = home or Path.home()
    command = [python, "-m", "moa_client.cli", "daemon", "run", *options]
    if platform == "linux":
        # systemd takes % for its own names, and $ for variables
        line = shlex.join(command).replace("%", "%%").replace("$", "$$")
        path = home / ".config/systemd/user" / f"{LABEL}.service"
        return Unit(path, SYSTEMD.format(command=line), f"systemctl --user enable --now {LABEL}")
    if platform == "darwin":
        agent = {"Label": LABEL, "ProgramArguments": command, "RunAtLoad": True, "KeepAlive": {"SuccessfulExit": False}}
        path = home / "Library/LaunchAgents" / f"{LABEL}.plist"
        return Unit(path, plistlib.dumps(agent).decode(), f"launchctl bootstrap gui/$(id -u) {shlex.quote(str(path))}")
    raise ConfigError(
        f"There is no unit for {platform}.", hint="Have your system run `moa-client daemon run` at login."
    )
