"""The processes of a replica as torch.distributed knows them: orders from rank 0, and keys and values back to it.

State: the process groups. Orders and replies are on the host and go by gloo whatever computes the model; they have a
group of their own. Invariant: an order that was sent is carried out by all ranks, or the replica is lost: ranks that
are not at the same place must stop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from threading import Lock
from typing import NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from moa_shared.errors import ConfigError, UnavailableError

from moa_server.verifier.parallel.orders import Order, Stop, decode, encode
from moa_server.verifier.parallel.rank import Rank
from moa_server.verifier.parallel.watch import LostRankError, Watch

FIRST_NUMBERS = 1024  # that an order's first message has room for: a step of 16 sessions over 1,000 tokens each
REASON_SECONDS = 1.0  # for the watch to say which rank is gone, where the work has noticed it first
# Of the model's own sums; ranks load at different speeds. A rank that is gone is noticed by the watch.
SUM_TIMEOUT = timedelta(hours=2)


T = TypeVar("T")
Numbers = npt.NDArray[np.int64]


class Group:
    """All processes of a replica; make it with `join`.

    Attributes:
        rank: of this process.
        watch: notices when another one is gone.
    """

    def __init__(self, rank: Rank, watch: Watch, orders: dist.ProcessGroup) -> None:
        self.rank, self.watch = rank, watch
        self._orders = orders
        self._one_order = Lock()

    def carry_out(self, order: Order, work: Callable[[], T]) -> T:
        """Has an order carried out by all ranks; gives what `work`, this rank's part of it, gives. Rank 0 only.

        Raises:
            SystemExit: it was not. That ends this thread, past all that would blame a session for it; the sessions are
                told to go elsewhere.
        """
        with self._one_order:
            try:
                self._send(order)
                return work()
            except Exception as error:
                why = f"The processes of the replica could not work together ({_first_line(error)})."
                self.watch.lose(why, REASON_SECONDS)
                raise SystemExit(LostRankError.exit_code) from error

    def stop(self) -> None:
        """Ends the followers, unless the replica is lost. Rank 0 only; nothing can be ordered afterwards."""
        if self.watch.loss is None:
            self.carry_out(Stop(), self.watch.stop)

    def leave(self, code: int) -> NoReturn:
        """Ends this process without a goodbye, and so the replica."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python's own end would abort while the watch waits for the others' beats

    def _send(self, order: Order) -> None:
        numbers = encode(order)
        first = np.zeros(FIRST_NUMBERS, np.int64)
        first[0] = len(numbers)
        fitting = numbers[: FIRST_NUMBERS - 1]
        first[1 : 1 + len(fitting)] = fitting
        self._broadcast(first)
        if len(numbers) > len(fitting):
            self._broadcast(numbers[len(fitting) :].copy())

    def receive(self) -> Order:
        """The next order; followers only."""
        first = self._broadcast(np.empty(FIRST_NUMBERS, np.int64))
        count = int(first[0])
        numbers = first[1 : 1 + count]
        if count > len(numbers):
            numbers = np.concatenate([numbers, self._broadcast(np.empty(count - len(numbers), np.int64))])
        return decode(numbers)

    def gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor in their order, on the host, all of one shape; on followers nothing."""
        own = own.cpu().contiguous()
        parts = [torch.empty_like(own) for _ in range(self.rank.count)] if self.rank.number == 0 else None
        dist.gather(own, parts, dst=0, group=self._orders)
        return parts or []

    def least(self, number: int) -> int:
        """The least of all ranks' numbers."""
        tensor = torch.tensor([number])
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self._orders)
        return int(tensor)

    def _broadcast(self, numbers: Numbers) -> Numbers:
        dist.broadcast(torch.from_numpy(numbers), src=0, group=self._orders)
        return numbers


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def join(rank: Rank, silence_seconds: float) -> Group:
    """Meets the other processes, and begins to watch them.

    Args:
        silence_seconds: after which a rank that says nothing counts as gone.

    Raises:
        ConfigError: this machine has fewer GPUs than processes.
        UnavailableError: the others did not come.
    """
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        if torch.cuda.device_count() < rank.local_count:
            raise ConfigError(
                f"{rank.local_count} processes share the target here, and torch sees {torch.cuda.device_count()} GPUs.",
                hint="Start as many processes as there are GPUs (torchrun --nproc-per-node).",
            )
        torch.cuda.set_device(rank.local)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_cuda else "gloo", timeout=SUM_TIMEOUT)
        orders = dist.new_group(backend="gloo", timeout=timedelta(days=365))  # a follower may wait for work that long
        beats = dist.new_group(backend="gloo", timeout=timedelta(seconds=silence_seconds))
    except (RuntimeError, ValueError) as error:
        raise UnavailableError(
            f"The {rank.count} processes of this replica did not find each other ({error}).",
            hint="Look at the log of the others, and at torchrun's --rdzv-endpoint if they are on several machines.",
        ) from error
    watch = Watch(rank, beats, silence_seconds)
    watch.start()
    return Group(rank, watch, orders)
