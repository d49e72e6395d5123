"""The other ranks: they do what rank 0 orders, with their share of the model and their heads' keys and values.

State: as of a target in torch, without conversations. Invariant: whatever fails here ends the process, and with it the
replica.
"""

from __future__ import annotations

import signal

import structlog
from moa_shared.errors import InternalError
from moa_shared.models import resolve
from moa_shared.programs.progress import Progress

from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import load_execution
from moa_server.verifier.paged.batch import Run
from moa_server.verifier.parallel.group import REASON_SECONDS, Group
from moa_server.verifier.parallel.orders import Move, Read, Stop
from moa_server.verifier.torch_target import TorchTarget

log = structlog.get_logger()


def follow(settings: ServerSettings, progress: Progress, group: Group) -> None:
    """Loads this rank's share, and follows rank 0 until the replica stops.

    Raises:
        MoaError: as `load_execution`.
    """
    files = resolve(settings.model, settings.cache_dir, progress)
    execution = load_execution(files, settings, progress, group)
    if not isinstance(execution.target, TorchTarget):
        raise InternalError("A target that processes share is not one of torch.")
    for number in (signal.SIGTERM, signal.SIGINT):  # rank 0 drains, and needs its followers for that
        signal.signal(number, signal.SIG_IGN)
    execution.before()
    log.info("following", rank=group.rank.number, processes=group.rank.count)
    try:
        carry_out_orders(execution.target, group)
    except Exception as error:
        log.error("following failed", rank=group.rank.number, exc_info=error)
        group.watch.lose("This process could not do what rank 0 ordered.", REASON_SECONDS)  # ends it
    log.info("stopped", rank=group.rank.number)


def carry_out_orders(target: TorchTarget, group: Group) -> None:
    """Does what rank 0 orders, until it says stop."""
    while True:
        match group.receive():
            case Run() as run:
                target.compute(run)
            case Move(source, to):
                target.pool.move(source, to)
            case Read(slots):
                group.gather(target.pool.read(slots))
            case Stop():
                group.watch.stop()
                return
