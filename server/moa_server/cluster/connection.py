"""A connection to Ray for the time of a command: to the cluster that is named, or to the one that runs here."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from moa_shared.errors import NotFoundError, UnavailableError

from moa_server.cluster.rules import NAMESPACE

ADDRESS_VARIABLE = "RAY_ADDRESS"
HERE = "auto"
REACH_SECONDS = 10.0
# By itself Ray tries for seven minutes to reach a head that is not there.
PATIENCE = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_gcs_server_request_timeout_seconds": "10"}


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to Ray.

    `address`: as Ray knows it; None: the one that RAY_ADDRESS names, else the Ray of this machine.
    """
    where = address or os.environ.get(ADDRESS_VARIABLE) or HERE
    _reach(where)
    os.environ.update(PATIENCE)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    import ray.serve

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
    """Refuses an address at which nothing listens."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():  # "auto", for example
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _silent(where, f"{getattr(error, 'strerror', None) or error}.") from None


def _silent(where: str, words: str) -> UnavailableError:
    return UnavailableError(f"Ray at {where} does not answer: {words}", hint="Check --address.")
