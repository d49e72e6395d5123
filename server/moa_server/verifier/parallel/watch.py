"""Notices that another process of the replica is gone: its connection closes, or it says nothing for too long.

Rank 0 and each follower send each other beats; followers do not watch each other, since all end with rank 0. State:
why the replica is lost. Invariant: a loss is reported once; after a goodbye silence is no loss.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NoReturn

import structlog
import torch
import torch.distributed as dist
from moa_shared.errors import UnavailableError

from moa_server.verifier.parallel.rank import Rank

log = structlog.get_logger()

BEATS = 5  # in the time after which a silent rank counts as gone
BEAT, GOODBYE = 1, 2
STOP_SECONDS = 5.0  # for the others' goodbyes


class LostRankError(UnavailableError):
    """A process of the replica is gone, and the replica ends with it."""

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
        """Calls this, once and on any thread, when the replica is lost. Until then a loss ends the process."""
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
