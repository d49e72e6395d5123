"""Admission of calls: keys, rights, and how many calls of an address, a connection or an owner there may be.

State: the keys in force, and what callers have taken. Invariant: strangers wait, but never at the cost of those with
good keys.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable

from moa_shared.errors import AuthenticationError, ForbiddenError

from moa_server.access.keys import Gate
from moa_server.access.limits import MINUTE, Bucket, Buckets, Caller, Rates, Right, address_of, anonymous
from moa_server.settings import ServerSettings

MOST_LINES = 10
MOST_KINDS = 256  # a flood from many addresses writes no more lines than a flood from so many
OTHERS = "(others)"


class RefusalLog:
    """Which refusals have a line in the log: a few of each code and caller a minute; further ones are counted."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._since = 0.0  # when the first of them came

    def is_worth_a_line(self, code: str, owner: str, now: float) -> bool:
        """Counts a refusal; whether to log it. `code`: of the error; `owner`: who was refused."""
        if not self._counts:
            self._since = now
        is_new = (code, owner) not in self._counts and len(self._counts) >= MOST_KINDS
        kind = (code, OTHERS if is_new else owner)
        self._counts[kind] += 1
        return self._counts[kind] <= MOST_LINES

    def take_left_out(self, now: float) -> list[dict[str, object]]:
        """How many of each kind had no line in the minute that has ended; empty until one has."""
        if now < self._since + MINUTE:
            return []
        counts, self._counts = self._counts, Counter()
        return [
            {"code": code, "owner": owner, "count": count - MOST_LINES}
            for (code, owner), count in counts.items()
            if count > MOST_LINES
        ]


# In µs of a core of the reference machine, gRPC's threads included: they take as much as the event loop.
CALL_US = 2000.0
WRONG_KEY_US = 20_000.0  # two and a half guesses a second
FRAME_US = 150.0
REPLY_US = 150.0
BYTE_US = 0.01
NODE_US = 1.0
# What a connection may cost a minute: a twentieth of a core; a client that streams 200 drafts of 8 nodes a second takes
# 0.03 of one.
SHARE_US = 0.05 * 60e6
BURST_US = 100_000.0  # a reconnect with a context of 131,072 tokens is 10,000
ADDRESS_TIMES = 4  # what one connection has, at least, for the calls of an address: 100 a second
TOGETHER_US = 2500.0  # of frames that are handled in one go after a pause: one by one they cost twice as much


def frame_cost(nbytes: int, nodes: int, *, replies: bool = False) -> float:
    """The cost of a frame of `nbytes` bytes with `nodes` draft nodes; `replies`: the server answers with a frame."""
    return FRAME_US + BYTE_US * nbytes + NODE_US * nodes + replies * REPLY_US


def pause_seconds(allowance: Bucket) -> float:
    """How long to begin no call and read no frame; 0: continue."""
    return allowance.seconds_until(TOGETHER_US) if allowance.left < 0.0 else 0.0


def address_times(calls_per_minute: int) -> float:
    """How much the calls of an address may cost, in allowances of one connection, if so many are permitted.

    Twice as much as these take: where more come, some are refused, which costs as much.
    """
    return max(ADDRESS_TIMES, 2 * calls_per_minute * CALL_US / SHARE_US) if calls_per_minute else math.inf


class Admission:
    def __init__(self, settings: ServerSettings, gate: Gate, clock: Callable[[], float]) -> None:
        self.gate = gate
        self.rates = Rates(
            settings.peer_requests_per_minute, settings.requests_per_minute, settings.tokens_per_minute, clock
        )
        self.connections = Buckets(clock)
        self._addresses = Buckets(clock)
        self._address_times = address_times(settings.peer_requests_per_minute)
        self.refusals = RefusalLog()

    async def admit(
        self, metadata: Iterable[tuple[str, str | bytes]], peer: str, certificate: str, right: Right | None
    ) -> Caller:
        """The caller of a call that may begin now.

        `certificate`: whose it is that the connection has shown; empty: none.
        """
        refusal: AuthenticationError | None = None
        try:  # first, since others behind this address, and a proxy's on this connection, may have no good key
            caller = self.gate.admit(metadata, peer, certificate)
        except AuthenticationError as error:
            caller, refusal = anonymous(peer), error
        connection, times = self.allowance(caller), self._address_times
        address = self._addresses.of(caller.account(address_of(peer)), times * SHARE_US, times * BURST_US)
        connection.take(CALL_US)
        address.take(CALL_US)
        if seconds := max(pause_seconds(connection), pause_seconds(address)):
            await asyncio.sleep(seconds)
        self.rates.on_call(caller)
        if refusal is not None:
            connection.take(WRONG_KEY_US)
            raise refusal
        if right is not None and right not in caller.rights:
            raise ForbiddenError(f"The key {caller.key} has no right to {right}.")
        if right is not Right.FETCH:  # a drafter takes dozens of calls
            self.rates.on_request(caller)
        return caller

    def allowance(self, caller: Caller) -> Bucket:
        """What the calls and frames of a connection may cost, in µs."""
        return self.connections.of(caller.account(caller.peer), SHARE_US, BURST_US)
