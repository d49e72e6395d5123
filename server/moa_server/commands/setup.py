"""`moa-server setup`: a certificate, a key and settings for a server that others reach, in one command."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.output import write_output

from moa_server.settings import METRICS_PORT, ServerSettings, usual_folder


@click.command()
@click.argument("hosts", metavar="HOST...", nargs=-1)
@click.option(
    "--folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where the files go.  [default: moa/server in the user's configuration folder]",
)
@click.option("--port", type=click.IntRange(1, 65535), default=50051, help="Port to listen on.  [default: 50051]")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), default=METRICS_PORT,
    help=f"Port for metrics and health, for this machine only; 0: any free one.  [default: {METRICS_PORT}]",
)  # fmt: skip
@click.option(
    "--renew", "renews", is_flag=True, help="Make a new certificate of the same authority; nothing else changes."
)
def setup(hosts: tuple[str, ...], folder: Path | None, port: int, metrics_port: int, renews: bool) -> None:
    """Make all that a server needs to be reached as HOST by others, and print an invitation for a device.

    HOST is a name or an IP address of this machine as devices know it; several may be given. The folder gets an
    authority of its own (10 years), a certificate for the server (1 year), a key for one device, and server.toml for
    `moa-server serve --config`. What is there is never overwritten; --renew replaces the certificate alone.
    """
    from datetime import UTC, datetime

    from moa_server.setup.devices import FIRST_DEVICE, add_device, invitation_words
    from moa_server.setup.folder import SetupFolder
    from moa_server.setup.setting_up import invitation_with, renew, set_up

    now = datetime.now(UTC)
    if folder is None:
        in_force = ServerSettings.usual_file() if renews else None
        folder = in_force.parent if in_force is not None else usual_folder()
    where = SetupFolder(folder.expanduser().absolute())
    if renews:
        names = renew(where, hosts, now)
        print(
            f"The certificate for {', '.join(names)} is valid for a year. A running server takes it by itself.",
            file=sys.stderr,
        )
        return
    if not hosts:
        raise ConfigError(
            "Devices must know this machine by some name.",
            hint="Name it as they reach it: moa-server setup gpu.example, or an IP address.",
        )
    key = set_up(where, hosts, port, lambda keys: add_device(keys, FIRST_DEVICE, now), now, metrics_port)
    write_output(f"{invitation_with(where, key).line()}\n")
    print(invitation_words(FIRST_DEVICE, where.settings, None), end="", file=sys.stderr)
    print(f"To serve: moa-server serve --config {where.settings}", file=sys.stderr)
