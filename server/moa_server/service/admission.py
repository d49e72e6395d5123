"""Admission of calls: keys, rights, and how many calls of an address, a connection or an owner there may be.

State: the keys in force, and what callers have taken. Invariant: strangers wait, but never at the cost of those with
good keys.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moa_shared.errors import AuthenticationError

from moa_server.access.keys import Gate, check_right
from moa_server.access.limits import Caller, Rates, Right, address_of, anonymous
from moa_server.settings import ServerSettings

MINUTE = 60.0  # seconds
MOST_LINES = 10
MOST_KINDS = 256  # a flood from many addresses writes no more lines than a flood from so many
OTHERS = "(others)"


@dataclass(slots=True)
class _Kind:
    since: float
    lines: int = 0
    left_out: int = 0


class RefusalLog:
    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def is_worth_a_line(self, code: str, owner: str, now: float) -> bool:
        """Counts a refusal; whether to log it. `code`: of the error; `owner`: who was refused."""
        name = (code, owner)
        if name not in self._kinds and len(self._kinds) >= MOST_KINDS:
            name = (code, OTHERS)
        kind = self._kinds.setdefault(name, _Kind(now))
        if kind.lines < MOST_LINES:
            kind.lines += 1
            return True
        kind.left_out += 1
        return False

    def take_left_out(self, now: float) -> list[dict[str, object]]:
        """How many of each kind had no line in minutes that have ended, of which nothing is remembered then."""
        ended = [name for name, kind in self._kinds.items() if now >= kind.since + MINUTE]
        kinds = [(name, self._kinds.pop(name)) for name in ended]
        return [
            {"code": code, "owner": owner, "count": kind.left_out} for (code, owner), kind in kinds if kind.left_out
        ]


# Measured on one core of the reference machine, gRPC's threads included: they take as much as the event loop.
CALL_US = 2000.0
WRONG_KEY_US = 20_000.0
FRAME_US = 150.0
REPLY_US = 150.0
BYTE_US = 0.01
NODE_US = 1.0
SHARE = 0.05  # of a core; a client that streams 200 drafts of 8 nodes a second takes 0.03
BURST_US = 100_000.0  # a reconnect with a context of 131,072 tokens is 10,000
ADDRESS_TIMES = 4  # what one connection has, at least, for the calls of an address: 100 a second
TOGETHER_US = 2500.0  # of frames that are handled in one go after a pause: one by one they cost twice as much
MOST_KEPT = 1024  # allowances, before those that are full again are forgotten


class Allowance:
    """What one connection, or address, has left. `times`: as much as one connection has."""

    def __init__(self, clock: Callable[[], float], times: float = 1.0) -> None:
        self._clock = clock
        self._share, self._burst_us = times * SHARE, times * BURST_US
        self._left_us = self._burst_us
        self._filled_at = clock()

    def charge(self, nbytes: int, nodes: int, *, replies: bool = False) -> None:
        """Pays for a frame of `nbytes` bytes with `nodes` draft nodes; `replies`: the server answers with a frame."""
        self.charge_us(FRAME_US + BYTE_US * nbytes + NODE_US * nodes + replies * REPLY_US)

    def charge_us(self, cost_us: float) -> None:
        """Pays for a call, or for a key that is not in force, of which two and a half guesses a second are left."""
        self._fill()
        self._left_us -= cost_us

    @property
    def pause_seconds(self) -> float:
        """How long to read no further frame; 0: read on."""
        self._fill()
        return (TOGETHER_US - self._left_us) / (1e6 * self._share) if self._left_us < 0.0 else 0.0

    @property
    def is_full(self) -> bool:
        """Whether nothing is owed, so that a new one would be as good."""
        self._fill()
        return self._left_us >= self._burst_us

    def _fill(self) -> None:
        now = self._clock()
        self._left_us = min(self._burst_us, self._left_us + 1e6 * self._share * (now - self._filled_at))
        self._filled_at = now


class Allowances:
    """The allowance of each account (`Caller.account`) of connections, or of addresses."""

    def __init__(self, clock: Callable[[], float], times: float = 1.0) -> None:
        self._clock = clock
        self._times = times
        self._kept: dict[str, Allowance] = {}
        self.connections = 0  # that have made a call; one that was forgotten counts again

    def of(self, name: str) -> Allowance:
        if len(self._kept) >= MOST_KEPT and name not in self._kept:
            self._kept = {each: allowance for each, allowance in self._kept.items() if not allowance.is_full}
        if name not in self._kept:
            self._kept[name] = Allowance(self._clock, self._times)
            self.connections += 1
        return self._kept[name]


def address_times(calls_per_minute: int) -> float:
    """How much the calls of an address may cost, in allowances of one connection, if so many are permitted.

    Twice as much as these take: where more come, some are refused, which costs as much.
    """
    if not calls_per_minute:
        return math.inf
    return max(ADDRESS_TIMES, 2 * calls_per_minute * CALL_US / (60e6 * SHARE))


class Admission:
    def __init__(self, settings: ServerSettings, gate: Gate, clock: Callable[[], float]) -> None:
        self.gate = gate
        self.rates = Rates(
            settings.peer_requests_per_minute, settings.requests_per_minute, settings.tokens_per_minute, clock
        )
        self.allowances = Allowances(clock)
        self.address_allowances = Allowances(clock, address_times(settings.peer_requests_per_minute))
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
        connection = self.allowance(caller)
        address = self.address_allowances.of(caller.account(address_of(peer)))
        connection.charge_us(CALL_US)
        address.charge_us(CALL_US)
        if pause_seconds := max(connection.pause_seconds, address.pause_seconds):
            await asyncio.sleep(pause_seconds)
        self.rates.on_call(caller)
        if refusal is not None:
            connection.charge_us(WRONG_KEY_US)
            raise refusal
        if right is not None:
            check_right(caller, right)
        if right is not Right.FETCH:  # a drafter takes dozens of calls
            self.rates.on_request(caller)
        return caller

    def allowance(self, caller: Caller) -> Allowance:
        return self.allowances.of(caller.account(caller.peer))
