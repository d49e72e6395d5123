"""The processes that share a target: orders from rank 0, keys and values back to it, and what notices a lost one.

State: the process groups. Orders are JSON; they and replies are on the host and go by gloo whatever computes the model,
in a group of their own. Invariants: an order that was sent is carried out by all ranks, or the replica is lost: ranks
that are not at the same place must stop. Followers learn of each write before rank 0 has done it.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from threading import Lock
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import structlog
import torch
import torch.distributed as dist
from moa_shared.errors import ConfigError, UnavailableError

from moa_server.verifier.target import Rank

Bytes = npt.NDArray[np.uint8]
Order = tuple[Any, ...]  # its name and what it takes; (): the replica ends
T = TypeVar("T")

log = structlog.get_logger()

BEATS = 5  # in the time after which a silent rank counts as gone
BEAT, GOODBYE = 1, 2
STOP_SECONDS = 5.0  # for the others' goodbyes


class LostRankError(UnavailableError):
    default_hint = "Its own log says why. Start the replica again; its sessions go on elsewhere meanwhile."


class Watch:
    """Watches the other processes of a replica, from the start.

    `beats`: a process group that nothing else uses, whose time-out is `silence_seconds`, after which a rank that sends
    no beat counts as gone.
    """

    def __init__(self, rank: Rank, beats: dist.ProcessGroup, silence_seconds: float) -> None:
        self.loss: LostRankError | None = None  # why the replica is lost
        self._rank, self._beats, self._silence_seconds = rank, beats, silence_seconds
        peers = range(1, rank.count) if rank.number == 0 else [0]
        self._stopping, self._lost = threading.Event(), threading.Event()
        self._on_lost: Callable[[], object] = self._exit
        self._one_report = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=(peers,), name="beats", daemon=True)]
        self._threads += [
            threading.Thread(target=self._listen, args=(peer,), name=f"rank {peer}", daemon=True) for peer in peers
        ]
        for thread in self._threads:
            thread.start()

    def call(self, on_lost: Callable[[], object]) -> None:
        with self._one_report:
            self._on_lost = on_lost

    def lose(self, why: str, patience_seconds: float = 0.0) -> None:
        """Reports that the replica is lost, unless that is known within `patience_seconds`, and more exactly."""
        self._lost.wait(patience_seconds)
        with self._one_report:
            if self.loss is not None or self._stopping.is_set():
                return
            self.loss = LostRankError(why)
            log.error("replica lost", reason=why, rank=self._rank.number)
            self._lost.set()
            self._on_lost()

    def stop(self) -> None:
        """Says goodbye, and waits for the others' goodbyes."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(STOP_SECONDS)

    def _exit(self) -> NoReturn:
        os._exit(LostRankError.exit_code)  # another thread may wait for the lost rank, and cannot be interrupted

    def _send(self, peers: range | list[int]) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(self._silence_seconds / BEATS)
            for peer in peers:
                word = torch.tensor([GOODBYE if stopping else BEAT])
                try:
                    dist.send(word, dst=peer, group=self._beats)
                except (RuntimeError, ValueError):
                    return  # who listens to it reports that

    def _listen(self, peer: int) -> None:
        word = torch.zeros(1, dtype=torch.long)
        while int(word) != GOODBYE:
            try:
                dist.recv(word, src=peer, group=self._beats)
            except (RuntimeError, ValueError) as error:
                reason = "it says nothing" if "imed out" in str(error) else "its connection is closed"
                self.lose(f"The process of rank {peer} is gone ({reason}).")
                return


FIRST_BYTES = 8192  # that an order's first message has room for: a step of 16 sessions over 1,000 tokens each
REASON_SECONDS = 1.0  # for the watch to say which rank is gone, where the work has noticed it first
# Of the model's own sums; ranks load at different speeds. A rank that is gone is noticed by the watch.
SUM_TIMEOUT = timedelta(hours=2)


class Group:
    """All processes of a replica; make it with `join`. `rank`: of this one."""

    def __init__(self, rank: Rank, watch: Watch, orders: dist.ProcessGroup) -> None:
        self.rank, self.watch = rank, watch
        self._orders = orders
        self._one_order = Lock()

    def carry_out(self, order: Order, work: Callable[[], T]) -> T:
        """Has an order carried out by all ranks; gives what `work`, this rank's part of it, gives. Rank 0 only."""
        with self._one_order:
            try:
                self._send(order)
                return work()
            except Exception as error:
                why = (str(error) or type(error).__name__).splitlines()[0]
                self.watch.lose(f"The processes of the replica could not work together ({why}).", REASON_SECONDS)
                raise SystemExit(LostRankError.exit_code) from error

    def stop(self) -> None:
        """Ends the followers, unless the replica is lost. Rank 0 only; nothing can be ordered afterwards."""
        if self.watch.loss is None:
            self.carry_out((), self.watch.stop)

    def leave(self, code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python's own end would abort while the watch waits for the others' beats

    def _send(self, order: Order) -> None:
        data = np.frombuffer(json.dumps(order, separators=(",", ":")).encode(), np.uint8)
        first = np.zeros(FIRST_BYTES, np.uint8)
        first[:8].view(np.int64)[0] = len(data)
        fitting = data[: FIRST_BYTES - 8]
        first[8 : 8 + len(fitting)] = fitting
        self._broadcast(first)
        if len(data) > len(fitting):
            self._broadcast(data[len(fitting) :].copy())

    def receive(self) -> list[Any]:
        """The next order, as `carry_out` was given it on rank 0."""
        first = self._broadcast(np.empty(FIRST_BYTES, np.uint8))
        count = int(first[:8].view(np.int64)[0])
        data = first[8 : 8 + count]
        if count > len(data):
            data = np.concatenate([data, self._broadcast(np.empty(count - len(data), np.uint8))])
        order: list[Any] = json.loads(data.tobytes())
        return order

    def gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor in their order, on the host, all of one shape; on followers nothing."""
        own = own.cpu().contiguous()
        parts = [torch.empty_like(own) for _ in range(self.rank.count)] if self.rank.number == 0 else None
        dist.gather(own, parts, dst=0, group=self._orders)
        return parts or []

    def least(self, number: int) -> int:
        tensor = torch.tensor([number])
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self._orders)
        return int(tensor)

    def _broadcast(self, data: Bytes) -> Bytes:
        dist.broadcast(torch.from_numpy(data), src=0, group=self._orders)
        return data


def join(rank: Rank, silence_seconds: float) -> Group:
    """Meets the other processes, and begins to watch them. `silence_seconds`: as of `Watch`."""
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
    return Group(rank, Watch(rank, beats, silence_seconds), orders)
