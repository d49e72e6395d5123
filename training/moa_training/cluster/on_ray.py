"""Parts on the workers of a Ray cluster: the only module that knows Ray.

Ray decides where workers run, starts lost ones again and repeats their parts; what a part is and what comes of it is
decided before. State: the connection to the cluster. Each worker loads its model once.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

from moa_shared.errors import ConfigError, MoaError, UnavailableError
from moa_shared.programs.progress import Progress, SilentProgress

from moa_training.cluster.parts import Advance, ClusterJob, ClusterPart, Work
from moa_training.cluster.run import InProcess, Runner

LOCAL = "local"
_STORE_BYTES = 100_000_000  # of a local cluster: parts are some 100 kB each
_PATIENCE_SECONDS = 5.0
# A local cluster listens at loopback only (Ray names the variable after systems where it does anyway), with a token.
_CLOSED = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


@contextmanager
def open_runner(address: str | None, workers: int | None, threads: int, progress: Progress) -> Iterator[Runner]:
    """This process without an address, otherwise a Ray cluster, which is left when the block ends.

    Args:
        address: of a cluster (HOST:PORT), or LOCAL for one on this machine that ends with the block.
        workers: how many; None: as many as the cluster has room for.
        threads: of each, which is how many CPUs it takes; 0 counts as one.

    Raises:
        ConfigError: the address is none.
        UnavailableError: no cluster there, or one that does not take us.
    """
    if address is None:
        yield InProcess(progress)
        return
    if address != LOCAL:
        _require_listener(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL:
        os.environ.update(_CLOSED, RAY_AUTH_TOKEN=secrets.token_hex(32))  # before Ray is imported, which reads it
    import ray

    cpus = max(1, threads)
    with ExitStack() as stack:
        if address == LOCAL:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-ray-", ignore_cleanup_errors=True))
            _start_local(None if workers is None else workers * cpus, folder)
        else:
            _join(address)
        stack.callback(ray.shutdown)
        yield RayRunner(workers, cpus)


def _join(address: str) -> None:
    import ray

    try:
        ray.init(address=address, **_QUIET)
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise UnavailableError(
            f"The Ray cluster at {address} does not take this command ({_first_line(error)}).",
            hint="Use its head's version of Ray; if it has a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH.",
        ) from error


def _start_local(cpus: int | None, folder: str) -> None:
    """Starts a cluster on this machine; twice where the first one is not up within Ray's 30 s.

    Args:
        folder: that only this user may enter; Ray's own, inside, is open to all.
    """
    import ray

    failed: Exception | None = None
    for _ in range(2):
        try:
            ray.init(
                address=LOCAL, num_cpus=cpus, include_dashboard=False, object_store_memory=_STORE_BYTES,
                _temp_dir=f"{folder}/ray", **_QUIET,
            )  # fmt: skip
            return
        except Exception as error:  # noqa: BLE001 - Ray has no class of its own for this
            failed = error
            ray.shutdown()
    raise UnavailableError(
        f"Ray does not start on this machine ({failed}).", hint="Try again when it is less busy, or leave out --ray."
    )


class RayRunner:
    """Workers of the cluster that this process is connected to; each takes one part at a time.

    Args:
        workers: None: as many as have room.
        cpus: of each worker. A cluster with GPUs gives each worker one of them besides.
    """

    def __init__(self, workers: int | None, cpus: int) -> None:
        self._workers = workers
        self._cpus = cpus

    def run(self, job: ClusterJob, parts: Sequence[ClusterPart], advance: Advance) -> Iterator[tuple[str, str]]:
        import ray

        resources = ray.cluster_resources()
        gpus = resources.get("GPU", 0.0)
        room = int(min(resources.get("CPU", 1.0) // self._cpus, gpus or resources.get("CPU", 1.0)))
        worker_class: Any = ray.remote(
            num_cpus=self._cpus,
            num_gpus=1 if gpus else 0,
            max_restarts=-1,  # a lost worker starts again, and repeats its part
            max_task_retries=-1,
        )(PartWorker)
        waiting = iter(parts)
        working = {}
        for part in islice(waiting, max(1, self._workers or room)):
            worker = worker_class.remote(job)
            working[worker.do.remote(part.items)] = worker, part
        try:
            while working:
                (answer,), _ = ray.wait(list(working))
                worker, part = working.pop(answer)
                result, failed = ray.get(answer)
                if failed is not None:
                    raise failed
                if (following := next(waiting, None)) is not None:
                    working[worker.do.remote(following.items)] = worker, following
                del worker  # one without a part ends, and leaves its room to one that is to start again
                advance(part.size)
                yield part.name, result
        except ray.exceptions.RayError as error:
            raise UnavailableError(
                f"The Ray cluster gave up ({_first_line(error)}).",
                hint="Start the same command again: it continues with the parts that are not finished.",
            ) from None


class PartWorker:
    """A worker: does parts with what its job has loaded. Errors that users may meet are results, which Ray does not
    repeat.
    """

    def __init__(self, job: ClusterJob) -> None:
        self._job = job
        self._work: Work | None = None

    def do(self, items: str) -> tuple[str, MoaError | None]:
        """The result of a part, or why there is none."""
        try:
            if self._work is None:
                self._work = self._job.start(SilentProgress())
            return self._work(items, lambda _: None), None
        except MoaError as error:
            return "", error


def _require_listener(address: str) -> None:
    """Ray itself would try for minutes, and write to standard error meanwhile."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--ray is {address!r}: expected HOST:PORT of a Ray cluster, or local.")
    try:
        socket.create_connection((host, int(port)), _PATIENCE_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UnavailableError(
            f"There is no Ray cluster at {address} ({error}).",
            hint="Start one with ray start --head, or give --ray local.",
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
