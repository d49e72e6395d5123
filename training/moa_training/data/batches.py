"""Conversations packed into rows of fixed length, and batches of such rows, epoch after epoch. Pure.

Several conversations share a row, each with its own positions; none sees another. Invariant: (epoch, batch) names the
same batch in every run over the same rows, seed and number of processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from moa_shared.errors import DataError

from moa_training.data.shards import TokenRow

WINDOW = 128  # conversations among which a row is filled up; 96 % full at 512 tokens a row


@dataclass(frozen=True, slots=True)
class RowShare:
    """Which rows of an update's batch are this process's; each process has as many as any other.

    Random draws are made for the rows of all processes by each of them, and cut down to its own. So an update draws the
    same for the same rows, whatever the number of processes.
    """

    process: int = 0
    processes: int = 1

    def total(self, rows: int) -> int:
        """Rows of all processes, where each has `rows`."""
        return rows * self.processes

    def own(self, drawn: torch.Tensor) -> torch.Tensor:
        """This process's part of what was drawn for all rows, [all rows, ...]."""
        rows = drawn.shape[0] // self.processes
        return drawn[self.process * rows : (self.process + 1) * rows]


WHOLE = RowShare()  # one process, whose rows are all


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch of packed rows; each tensor is [rows, length]."""

    ids: torch.Tensor  # tokens, 0 where padded
    positions: torch.Tensor  # within the conversation
    segment: torch.Tensor  # number of the conversation in its row, -1 where padded
    answer: torch.Tensor  # bool, tokens of answers

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.segment >= 0).sum())

    @property
    def same_segment(self) -> torch.Tensor:
        """[rows, length, length] bool: both belong to the same conversation (padding sees only itself)."""
        same = (self.segment[:, :, None] == self.segment[:, None, :]) & (self.segment >= 0)[:, :, None]
        return same | torch.eye(self.ids.shape[1], dtype=torch.bool, device=self.ids.device)

    @property
    def causal(self) -> torch.Tensor:
        """[rows, length, length] bool: of the same conversation, and not after it."""
        length = self.ids.shape[1]
        return self.same_segment & torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()

    def to(self, device: torch.device) -> PackedBatch:
        parts = [part.to(device) for part in (self.ids, self.positions, self.segment, self.answer)]
        return PackedBatch(*parts)


def plan_rows(lengths: Sequence[int], row_tokens: int, seed: int) -> list[list[int]]:
    """Which conversations share a row: shuffled, then first fit decreasing within windows; rows shuffled again.
    `lengths`: tokens of each conversation; longer ones than a row count as a full row.
    """
    order = list(range(len(lengths)))
    generator = random.Random(seed)
    generator.shuffle(order)
    plan: list[list[int]] = []
    for start in range(0, len(order), WINDOW):
        rows: list[tuple[int, list[int]]] = []
        for index in sorted(order[start : start + WINDOW], key=lambda i: -lengths[i]):
            need = min(lengths[index], row_tokens)
            for place, (used, members) in enumerate(rows):
                if used + need <= row_tokens:
                    members.append(index)
                    rows[place] = (used + need, members)
                    break
            else:
                rows.append((need, [index]))
        plan += [members for _, members in rows]
    generator.shuffle(plan)
    return plan


def pack(rows: Sequence[Sequence[TokenRow]], row_tokens: int) -> PackedBatch:
    """A batch of rows, each of some conversations; what is longer than a row is cut at its end."""
    shape = (len(rows), row_tokens)
    ids, positions = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    segment, answer = torch.full(shape, -1, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for row, members in enumerate(rows):
        place = 0
        for number, conversation in enumerate(members):
            count = min(len(conversation.ids), row_tokens - place)
            ids[row, place : place + count] = torch.tensor(conversation.ids[:count])
            positions[row, place : place + count] = torch.arange(count)
            segment[row, place : place + count] = number
            for start, stop in conversation.answers:
                answer[row, place + min(start, count) : place + min(stop, count)] = True
            place += count
    return PackedBatch(ids, positions, segment, answer)


class BatchStream:
    """An endless stream of batches of `batch_rows` packed rows for one process; each gets its own rows."""

    def __init__(
        self, rows: Sequence[TokenRow], *, batch_rows: int, row_tokens: int, seed: int, share: RowShare = WHOLE
    ) -> None:
        if not rows:
            raise DataError("The token shards hold no conversation.", hint="Prepare some text first.")
        self._rows = rows
        self._lengths = [len(row.ids) for row in rows]
        self._batch_rows, self._row_tokens, self._seed, self._share = batch_rows, row_tokens, seed, share

    def from_position(self, epoch: int, batch: int) -> Iterator[tuple[int, int, PackedBatch]]:
        """(epoch, number of the batch after this one, batch), beginning with batch number `batch` of `epoch`."""
        each = self._share.total(self._batch_rows)
        while True:
            plan = plan_rows(self._lengths, self._row_tokens, hash((self._seed, epoch)))
            while batch < max(1, len(plan) // each):
                first = batch * each + self._share.process * self._batch_rows
                chosen = [plan[index % len(plan)] for index in range(first, first + self._batch_rows)]
                batch += 1
                yield epoch, batch, pack([[self._rows[i] for i in members] for members in chosen], self._row_tokens)
            epoch, batch = epoch + 1, 0
