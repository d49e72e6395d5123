"""The target on rank 0, whose forwards and rows of keys and values are those of all ranks.

State: as of a target in torch, of this rank's heads. Invariant: followers learn of each write before it is done here.
"""

import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog
import torch
from moa_shared.errors import InternalError
from moa_shared.models import resolve
from moa_shared.programs.progress import Progress

from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import load_execution
from moa_server.verifier.paged.pool import PagePool, Run
from moa_server.verifier.parallel.group import REASON_SECONDS, Group, Move, Read, Stop
from moa_server.verifier.target import Rows
from moa_server.verifier.torch_target import TorchTarget


class LeaderPool(PagePool):
    """The pages of this rank's heads; what is read comes with the other ranks' heads. `sizes`: as of `PagePool`."""

    def __init__(self, group: Group, *sizes: Any) -> None:
        super().__init__(*sizes)
        self._group = group

    def move(self, source: Sequence[int], to: Sequence[int]) -> None:
        move = super().move
        self._group.carry_out(Move(source, to), lambda: move(source, to))

    def read(self, slots: Sequence[int]) -> torch.Tensor:
        """As of `PagePool`, of all heads, on the host."""
        read = super().read
        return torch.cat(self._group.carry_out(Read(slots), lambda: self._group.gather(read(slots))), dim=3)


class LeaderTarget(TorchTarget):
    """The target whose forwards all ranks run; arguments besides `group` as of `TorchTarget`."""

    def __init__(self, group: Group, *args: Any, **options: Any) -> None:
        self._group = group
        super().__init__(*args, **options, shares=group.rank.count, make_pool=partial(LeaderPool, group))

    @property
    def details(self) -> str:
        return f"{super().details}, shared by {self._group.rank.count} processes"

    def compute(self, run: Run) -> tuple[Rows, Rows, dict[int, Rows]]:
        compute = super().compute
        return self._group.carry_out(run, lambda: compute(run))


log = structlog.get_logger()


def follow(settings: ServerSettings, progress: Progress, group: Group) -> None:
    """Loads this rank's share, and follows rank 0 until the replica stops."""
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
