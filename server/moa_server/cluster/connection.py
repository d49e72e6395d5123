"""A connection to Ray for the time of a command, to the cluster that is named, or to the one that was started here."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from moa_shared.errors import NotFoundError, UnavailableError
from moa_shared.protocol.call_reasons import system_reason

from moa_server.cluster.local_ray import find_local, start_local

if TYPE_CHECKING:
    from moa_server.cluster.local_ray import LocalRay

NAMESPACE = "moa"
ADDRESS_VARIABLE = "RAY_ADDRESS"
REACH_SECONDS = 10.0
WATCH_SECONDS = 0.5
# By itself Ray tries for seven minutes to reach a head that is not there.
PATIENCE = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_gcs_server_request_timeout_seconds": "10"}


def find_lost(address: str | None) -> LocalRay | None:
    """The Ray that `connected` would lead to, were it not that it has ended by itself; None: it has not."""
    if address or os.environ.get(ADDRESS_VARIABLE):
        return None
    head = find_local()
    return head if head is not None and not head.is_alive else None


@contextmanager
def connected(address: str | None, start_cpus: int = 0) -> Iterator[LocalRay | None]:
    """A connection to Ray; the head that was started here, if it leads there.

    Args:
        address: as Ray knows it; None: the one that RAY_ADDRESS names, else the one that was started here.
        start_cpus: of one that is started here where there is none; 0: none is.

    Raises:
        NotFoundError: there is none, or it has ended by itself.
        UnavailableError: it does not answer.
    """
    where, head = address or os.environ.get(ADDRESS_VARIABLE, ""), None
    if not where:
        if (lost := find_lost(address)) is not None:
            raise _ended(lost)
        head = find_local() or (start_local(start_cpus, _say) if start_cpus else None)
        if head is None:
            hint = "Start a fleet with moa-server cluster up, or name Ray's address with --address."
            raise NotFoundError("No Ray cluster was started here.", hint=hint)
        where = head.address
        os.environ.update(head.environment())
    else:
        _reach(where)
    os.environ.update(PATIENCE)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    import ray.serve

    for name in ("ray", "ray.serve"):
        logging.getLogger(name).addFilter(_is_error)  # Ray sets levels again, and leaves filters
    with _watched(head), redirect_stdout(sys.stderr):  # on which Ray reports lost nodes, between our lines
        try:
            ray.init(where, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            words = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise _silent(where, words) from None
        try:
            yield head
        finally:
            ray.shutdown()


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _reach(where: str) -> None:
    """Refuses an address at which nothing listens."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():  # "auto", for example
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = system_reason(error) if isinstance(error, OSError) else "there is no such port"
        raise _silent(where, f"{why}.") from None


@contextmanager
def _watched(head: LocalRay | None) -> Iterator[None]:
    """Ends this program with an error once the head ends: Ray would wait for it for minutes, deaf to signals."""
    over = threading.Event()

    def watch(head: LocalRay) -> None:
        while not over.wait(WATCH_SECONDS):
            if not head.is_alive:
                error = _ended(head)
                print(f"Error: {error}", file=sys.stderr, flush=True)
                os._exit(error.exit_code)

    watching = threading.Thread(target=watch, args=(head,), name="moa-watch-ray", daemon=True)
    if head is not None:
        watching.start()
    try:
        yield
    finally:
        over.set()
        if head is not None:
            watching.join()


def _ended(head: LocalRay) -> NotFoundError:
    message = f"Ray, which ran here in process {head.process}, has ended without a command."
    return NotFoundError(message, hint="Bring the fleet up again: moa-server cluster up, with its options.")


def _silent(where: str, words: str) -> UnavailableError:
    return UnavailableError(f"Ray at {where} does not answer: {words}", hint="Check --address.")


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
