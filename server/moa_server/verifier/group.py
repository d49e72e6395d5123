"""The processes of a replica as torch.distributed knows them: orders from rank 0, and keys and values back to it.

State: the process groups. Orders and replies are on the host and go by gloo whatever computes the model; they have a
group of their own. Invariant: an order that was sent is carried out by all ranks, or the replica is lost: ranks that
are not at the same place must stop.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import structlog
import torch
import torch.distributed as dist
from moa_shared.errors import ConfigError, InternalError, UnavailableError
from moa_shared.models import resolve
from moa_shared.programs.progress import Progress

from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import load_execution
from moa_server.verifier.pool import BatchPart, PagePool, Run
from moa_server.verifier.rank import Rank
from moa_server.verifier.target import Rows
from moa_server.verifier.torch_target import TorchTarget

Numbers = npt.NDArray[np.int64]

_STOP, _RUN, _MOVE, _READ = range(4)


@dataclass(frozen=True, slots=True)
class Move:
    """Copy rows of keys and values from slots to others."""

    source: Sequence[int]
    to: Sequence[int]


@dataclass(frozen=True, slots=True)
class Read:
    """Send this rank's keys and values of some slots to rank 0."""

    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class Stop:
    """The replica ends."""


Order = Run | Move | Read | Stop


def encode(order: Order) -> Numbers:
    """An order as numbers; lists are preceded by their lengths."""
    match order:
        case Run():
            numbers = [_RUN, order.rows, *_list(order.chosen), *_list(order.layers), len(order.parts)]
            for part in order.parts:
                has_parents = part.parents is not None
                numbers += [*_list(part.tokens), *part.depths, part.prefix, *_list(part.used_pages()), int(has_parents)]
                numbers += part.parents or ()
        case Move():
            numbers = [_MOVE, *_list(order.source), *order.to]
        case Read():
            numbers = [_READ, *_list(order.slots)]
        case Stop():
            numbers = [_STOP]
    return np.array(numbers, np.int64)


def decode(numbers: Numbers) -> Order:
    rest = iter(numbers.tolist())
    match next(rest):
        case 1:
            rows, chosen, layers, parts = next(rest), _take(rest), _take(rest), next(rest)
            return Run([_part(rest) for _ in range(parts)], rows, chosen, layers)
        case 2:
            source = _take(rest)
            return Move(source, _take(rest, len(source)))
        case 3:
            return Read(_take(rest))
    return Stop()


def _part(rest: Iterator[int]) -> BatchPart:
    tokens = _take(rest)
    depths, prefix, pages = _take(rest, len(tokens)), next(rest), _take(rest)
    return BatchPart(tokens, depths, prefix, pages, _take(rest, len(tokens)) if next(rest) else None)


def _list(numbers: Sequence[int]) -> list[int]:
    return [len(numbers), *numbers]


def _take(rest: Iterator[int], count: int | None = None) -> list[int]:
    """The next numbers; None: as many as the next one says."""
    return [next(rest) for _ in range(next(rest) if count is None else count)]


log = structlog.get_logger()

BEATS = 5  # in the time after which a silent rank counts as gone
BEAT, GOODBYE = 1, 2
STOP_SECONDS = 5.0  # for the others' goodbyes


class LostRankError(UnavailableError):
    default_hint = "Its own log says why. Start the replica again; its sessions go on elsewhere meanwhile."


class Watch:
    """Watches the other processes of a replica.

    Args:
        beats: a process group that nothing else uses, whose time-out is `silence_seconds`.
        silence_seconds: after which a rank that sends no beat counts as gone.

    Attributes:
        loss: why the replica is lost; None: it is not.
    """

    def __init__(self, rank: Rank, beats: dist.ProcessGroup, silence_seconds: float) -> None:
        self.loss: LostRankError | None = None
        self._rank, self._beats, self._silence_seconds = rank, beats, silence_seconds
        peers = range(1, rank.count) if rank.number == 0 else [0]
        self._stopping, self._lost = threading.Event(), threading.Event()
        self._on_lost: Callable[[], object] = self._exit
        self._one_report = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=(peers,), name="beats", daemon=True)]
        self._threads += [
            threading.Thread(target=self._listen, args=(peer,), name=f"rank {peer}", daemon=True) for peer in peers
        ]

    def start(self) -> None:
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
                self.lose(f"The process of rank {peer} is gone ({_brief(error)}).")
                return


def _brief(error: Exception) -> str:
    return "it says nothing" if "imed out" in str(error) else "its connection is closed"


FIRST_NUMBERS = 1024  # that an order's first message has room for: a step of 16 sessions over 1,000 tokens each
REASON_SECONDS = 1.0  # for the watch to say which rank is gone, where the work has noticed it first
# Of the model's own sums; ranks load at different speeds. A rank that is gone is noticed by the watch.
SUM_TIMEOUT = timedelta(hours=2)


T = TypeVar("T")


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
            self.carry_out(Stop(), self.watch.stop)

    def leave(self, code: int) -> NoReturn:
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
        tensor = torch.tensor([number])
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self._orders)
        return int(tensor)

    def _broadcast(self, numbers: Numbers) -> Numbers:
        dist.broadcast(torch.from_numpy(numbers), src=0, group=self._orders)
        return numbers


def join(rank: Rank, silence_seconds: float) -> Group:
    """Meets the other processes, and begins to watch them.

    `silence_seconds`: after which a rank that says nothing counts as gone.
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
