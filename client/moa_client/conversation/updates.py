"""What surfaces (chat, page, endpoint) receive of a conversation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_client.conversation.events import SurfaceEvent

if TYPE_CHECKING:
    from moa_client.conversation.answer_figures import Figures, LinkStatus


@dataclass(frozen=True, slots=True)
class Update:
    """One event of a conversation, and what is known after it.

    Args:
        answer: the number of the answer that it is about, in the conversation, from 1; 0: it is about none.
        status: of the link.
        figures: of an answer that has ended.
    """

    event: SurfaceEvent
    answer: int = 0
    status: LinkStatus | None = None
    figures: Figures | None = None
