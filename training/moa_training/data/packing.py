"""Conversations packed into rows of fixed length. Pure: the same rows, seed and epoch give the same batches.

Several conversations share a row, each with its own positions; none sees another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moa_training.data.shards import TokenRow

WINDOW = 128  # conversations among which a row is filled up; 96 % full at 512 tokens a row


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch of packed rows; each tensor is [rows, length].

    Args:
        ids: tokens, 0 where padded.
        positions: within the conversation.
        segment: number of the conversation in its row, -1 where padded.
        answer: bool, tokens of answers.
        number: of the batch in its epoch's plan; names it in every epoch, where epochs repeat their batches.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    segment: torch.Tensor
    answer: torch.Tensor
    number: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.segment >= 0).sum())

    @property
    def same_segment(self) -> torch.Tensor:
        """[rows, length, length] bool: both belong to the same conversation (padding sees only itself)."""
        same = (self.segment[:, :, None] == self.segment[:, None, :]) & (self.segment >= 0)[:, :, None]
        return same | torch.eye(self.ids.shape[1], dtype=torch.bool, device=self.ids.device)

    def to(self, device: torch.device) -> PackedBatch:
        parts = [part.to(device) for part in (self.ids, self.positions, self.segment, self.answer)]
        return PackedBatch(parts[0], parts[1], parts[2], parts[3], self.number)


def plan_rows(lengths: Sequence[int], row_tokens: int, seed: int) -> list[list[int]]:
    """Which conversations share a row: shuffled, then first fit decreasing within windows; rows shuffled again.

    Args:
        lengths: tokens of each conversation; longer ones than a row count as a full row.
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
    ids = torch.zeros(shape, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    segment = torch.full(shape, -1, dtype=torch.long)
    answer = torch.zeros(shape, dtype=torch.bool)
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
