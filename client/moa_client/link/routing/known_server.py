"""One of several servers: its link, and what is known about it.

State: its newest description, the time of a round trip, the newest failure, and until when others are preferred.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, MoaError
from moa_shared.protocol.handshake_checks import check_identity

from moa_client.link.channel import Link
from moa_client.link.routing.server_name import ServerName
from moa_client.link.routing.server_rank import ServerRank


class KnownServer:
    """A server that a conversation may go to.

    Args:
        link: to it.
        was_named: by another server, not by the user.
        of: the name that has its address, if it is one of several.
    """

    def __init__(self, link: Link, *, was_named: bool = False, of: ServerName | None = None) -> None:
        self.link = link
        self.was_named = was_named
        self.of = of
        self.served: pb.DescribeResponse | None = None  # the newest description
        self.error: MoaError | None = None  # why the newest attempt to ask it has failed
        self.rtt_ms: float | None = None
        self.measured_at = -math.inf  # seconds, monotonic
        self._avoid_until = 0.0
        self._failed_channel: int | None = None

    async def describe(self, seconds: float | None = None, prefix_hashes: Sequence[int] = ()) -> pb.DescribeResponse:
        """Asks what it serves, over another connection if the one before has failed.

        Args:
            prefix_hashes: of a text, to learn how much of it the server need not read.

        Raises:
            MoaError: it does not answer, or speaks another version of the protocol.
        """
        if self._failed_channel is not None:
            self.link.renew(self._failed_channel)
        self._failed_channel = None
        channel = self.link.channel_number
        try:
            self.served = await self.link.describe(seconds, prefix_hashes=prefix_hashes)
        except MoaError as error:
            self.error, self._failed_channel = error, channel
            raise
        self.error = None
        return self.served

    async def measure(self, seconds: float | None = None) -> None:
        """Asks what it serves, and how long a round trip takes: the first question also opens the connection.

        Raises:
            MoaError: as `describe`.
        """
        await self.describe(seconds)
        began = time.monotonic()
        await self.describe(seconds)
        self.measured_at = time.monotonic()
        self.rtt_ms = 1e3 * (self.measured_at - began)

    def avoid(self, seconds: float) -> None:
        """For so long, it is the last resort."""
        self._avoid_until = time.monotonic() + seconds

    def standing(self, needs: pb.Identity, unread_tokens: int = 0) -> ServerRank:
        """For a conversation that needs this target, tokenizer and drafter.

        Args:
            unread_tokens: of its text, that this server would have to read.
        """
        served = self.served
        if served is None:
            return ServerRank(avoid_until=self._avoid_until)
        drafter = needs.drafter_fingerprint
        return ServerRank(
            self.rtt_ms,
            served.step_ms,
            served.load,
            has_model=serves(served, needs),
            has_execution=computes_alike(served, needs),
            has_drafter=not drafter or drafter in [each.fingerprint for each in served.drafters],
            avoid_until=self._avoid_until,
            unread_tokens=unread_tokens,
            read_ms=served.read_ms or served.row_ms,  # an older version says only the latter, which is a little more
        )


def serves(served: pb.DescribeResponse, needs: pb.Identity) -> bool:
    """Whether it is a server of this target and tokenizer."""
    model = pb.Identity(target_fingerprint=needs.target_fingerprint, tokenizer_hash=needs.tokenizer_hash)
    try:
        check_identity(served.identity, model)
    except MismatchError:
        return False
    return True


def computes_alike(served: pb.DescribeResponse, needs: pb.Identity) -> bool:
    """Whether it decides with the same arithmetic, so that a text goes on to the letter."""
    return not needs.execution or served.identity.execution == needs.execution
