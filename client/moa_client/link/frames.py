"""Frames of the client, from what the pure conversation says."""

from __future__ import annotations

from moa.v1 import moa_pb2 as pb
from moa_shared.protocol.wire import settings_to_proto

from moa_client.conversation.conversation import AskMessage, DraftMessage


def ask_frame(message: AskMessage, provisional: pb.Draft | None = None) -> pb.Ask:
    """A question, or an answer to go on with, and what was written of it alone."""
    return pb.Ask(
        base=message.base,
        prefix_hash=message.prefix_hash,
        tokens=message.tokens,
        sampling=settings_to_proto(message.settings),
        answer_start=message.answer_start,
        provisional=provisional,
        id=message.id,
    )


def draft_frame(message: DraftMessage) -> pb.Draft:
    """Nodes of the draft in flight."""
    return pb.Draft(
        epoch=message.epoch,
        base=message.base,
        prefix_hash=message.prefix_hash,
        first_node=message.first_node,
        tokens=message.tokens,
        parents=message.parents,
        committed=message.committed,
    )
