"""`moa-server cluster`: a fleet of replicas on a Ray cluster. Ray is imported when a command runs, and nowhere else."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError, NotFoundError, UnavailableError
from moa_shared.programs.command_line import settings_options, table
from moa_shared.programs.config import load_settings
from moa_shared.programs.entry import install_extra, write_output

from moa_server.settings import SECTION, ServerSettings

address_option = click.option("--address", metavar="HOST:PORT|auto", help="Of Ray's head.  [RAY_ADDRESS, else auto]")
name_option = click.option("--name", default="moa", show_default=True, help="Of the fleet, on a Ray that has several.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
# The server's options that say nothing of a replica.
ONE_SERVER = ("ready_file", "metrics_port", "metrics_host", "peers", "advertise")


@click.group()
def cluster() -> None:
    """Run replicas of the server on a Ray cluster: it places, restarts, updates and scales them."""
    if find_spec("ray") is None:  # Ray itself reads the environment when it is imported: too soon here
        raise ConfigError("Ray is not installed.", hint=f"Install it: {install_extra('cluster')}.")


@cluster.command()
@address_option
@name_option
@click.option("--min-replicas", type=click.IntRange(1, 1000), default=1, show_default=True, help="At least so many.")
@click.option("--max-replicas", type=click.IntRange(1, 1000), help="At most so many, by load.  [as --min-replicas]")
@click.option("--cpus", type=click.FloatRange(0), default=1, show_default=True, help="That Ray sets aside for each.")
@click.option("--gpus", type=click.FloatRange(0), default=0, show_default=True, help="That Ray sets aside for each.")
@click.option("--upscale-seconds", type=click.FloatRange(0), default=10, show_default=True, help="Of load, for more.")
@click.option("--downscale-seconds", type=click.FloatRange(0), default=300, show_default=True, help="For fewer.")
@click.option("--surge/--no-surge", default=True, show_default=True, help="Update by a new replica before an old ends.")
@settings_options(ServerSettings, SECTION, ONE_SERVER)
def up(
    config_file: Path | None, address: str | None, name: str, min_replicas: int, max_replicas: int | None, **flags: Any
) -> None:
    """Serve MODEL by replicas, or update those that serve: one by one, while their conversations go on elsewhere.

    The options of `moa-server serve` hold for each replica; replicas of one machine listen on --port and the ports
    after it. Run it again after a change of keys: replicas take them in without a restart.
    """
    placing = {each: flags.pop(each) for each in ("cpus", "gpus", "upscale_seconds", "downscale_seconds", "surge")}
    settings = load_settings(ServerSettings, SECTION, flags, config_file)
    most = max_replicas or min_replicas
    if most < min_replicas:
        raise ConfigError(f"--max-replicas is {most}, less than --min-replicas.", hint="Give at least as many.")
    with connected(address):
        from moa_server.cluster import control

        replicas = control.up(control.FleetSettings(name, min_replicas, most, **placing), settings)
    click.echo(f"The fleet {name} is up.", err=True)
    write_output("".join(f"{each.address}\n" for each in replicas))


@cluster.command()
@address_option
@name_option
@json_option
def status(address: str | None, name: str, as_json: bool) -> None:
    """Print the replicas: where they are, their load and their sessions."""
    with connected(address):
        from moa_server.cluster import control

        replicas, state = control.reports(name), control.state_of(name)
    if as_json:
        write_output(json.dumps({"state": state, "replicas": [each.facts() for each in replicas]}) + "\n")
        return
    rows = [("address", "state", "load", "memory", "queue s", "sessions", "answering", "model", "process")]
    for each in replicas:
        load = f"{each.load:.0%}", f"{each.kv_used:.0%}", f"{each.queue_seconds:.1f}"
        what = str(each.sessions), str(each.answering), f"{each.model} {each.execution}", str(each.process)
        rows.append((each.address, str(each.state), *load, *what))
    write_output(f"Ray: {state}\n{table(rows)}")


@cluster.command()
@address_option
@name_option
def down(address: str | None, name: str) -> None:
    """Drain the replicas and remove them; Ray goes on."""
    with connected(address):
        from moa_server.cluster import control

        control.down(name)
    click.echo(f"The fleet {name} is down.", err=True)


HERE = "auto"
# By itself Ray tries for seven minutes to reach a head that is not there.
PATIENCE = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_gcs_server_request_timeout_seconds": "10"}


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to Ray at an address, else at RAY_ADDRESS, else to the Ray of this machine."""
    where = address or os.environ.get("RAY_ADDRESS") or HERE
    _reach(where)
    os.environ.update(PATIENCE)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    import ray.serve

    from moa_server.cluster.rules import NAMESPACE

    for name in ("ray", "ray.serve"):  # Ray sets levels again, and leaves filters
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR)
    with redirect_stdout(sys.stderr):  # on which Ray reports lost nodes, between our lines
        try:
            ray.init(where, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            if where == HERE and isinstance(error, ConnectionError):
                hint = "Start it with `ray start --head`, or name Ray's address with --address."
                raise NotFoundError("No Ray cluster runs here.", hint=hint) from None
            raise _silent(where, next(iter(str(error).strip().splitlines()), type(error).__name__)) from None
        try:
            yield
        finally:
            ray.shutdown()


def _reach(where: str) -> None:
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():  # "auto", for example
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), 10.0).close()
    except (OSError, OverflowError) as error:
        raise _silent(where, f"{getattr(error, 'strerror', None) or error}.") from None


def _silent(where: str, words: str) -> UnavailableError:
    return UnavailableError(f"Ray at {where} does not answer: {words}", hint="Check --address.")
