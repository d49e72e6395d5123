"""Who makes a call, and what a caller may take in a minute. Pure but for its clock, whose readings are in seconds.

Tokens are those that the target computes: read of prompts and not found in a cache, or written; a token is not paid
for twice because it is kept. A question is let in while anything is left, however long it is, and may go into debt;
so a limit that is smaller than a prompt delays the next question, and makes none impossible.

State: what is left in each bucket. Invariants: a bucket never holds more than one minute's worth; at most MOST_KEPT are
remembered, and those forgotten first are full or nearly so.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Network, ip_address
from urllib.parse import unquote

from moa_shared.errors import RateLimitError


class Right(StrEnum):
    CONVERSE = "converse"  # split inference
    GENERATE = "generate"  # answers of the server alone
    FETCH = "fetch"  # the device's half of the drafter


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """How much one caller may take; 0: no more is said than the server's own limits."""

    sessions: int = 0  # held at once, detached ones included
    kv_bytes: int = 0  # keys and values of all its running answers
    tokens_per_minute: int = 0  # read and written together
    requests_per_minute: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """One call's origin: the name under which sessions, shared text and limits are held together.

    `owner`: a key's, or without keys the address without its port. `key`: name of the API key; empty: none.
    `is_proven`: the owner has shown who it is; an address does not.
    """

    owner: str = ""
    peer: str = ""
    key: str = ""
    rights: frozenset[Right] = frozenset(Right)
    limits: CallerLimits = field(default_factory=CallerLimits)
    is_proven: bool = False

    def account(self, place: str) -> str:
        """Who pays for calls from a connection or an address: all strangers there together, or a proven owner alone."""
        return f"{place} {self.owner}" if self.is_proven else place


def anonymous(peer: str) -> Caller:
    """The caller of a server that wants no keys: as far as the address says."""
    return Caller(owner=peer.rpartition(":")[0], peer=peer)


def caller_without_key(peer: str, certificate: str) -> Caller:
    """The caller of a server that wants no keys: its certificate's subject, or as far as the address says."""
    return Caller(f"certificate {certificate}", peer, is_proven=True) if certificate else anonymous(peer)


MINUTE = 60.0  # seconds
MOST_KEPT = 8192  # buckets, 200 bytes each
PIECE_SECONDS = 10.0  # of its limit an answer writes so much at a time once that is reached: not word by word


class Bucket:
    """What is left of what flows in evenly.

    `per_minute`: how much that is; `most`: what it holds at most; None: a minute's worth. `taken`: all that was taken,
    less what was given back.
    """

    def __init__(self, clock: Callable[[], float], per_minute: float, most: float | None = None) -> None:
        self.taken = 0.0
        self._clock = clock
        self._per_minute = per_minute
        self._left = self._most = per_minute if most is None else most
        self._at = clock()

    @property
    def left(self) -> float:
        """What may be taken; negative: what is owed."""
        now = self._clock()
        self._left = min(self._most, self._left + self._per_minute * (now - self._at) / MINUTE)
        self._at = now
        return self._left

    def take(self, amount: float) -> None:
        """Takes an amount, whether it is there or not; a negative one is given back."""
        self._left = self.left - amount
        self.taken += amount

    def seconds_until(self, amount: float) -> float:
        """How long it takes until `amount` may be taken, or all that it holds."""
        return max(0.0, min(amount, self._most) - self.left) * MINUTE / self._per_minute

    def set_left(self, amount: float) -> None:
        """Takes what is left from another server's count."""
        self._left, self._at = min(self._most, amount), self._clock()

    def set_rate(self, per_minute: float) -> None:
        """Another amount flows in, and it holds a minute's worth; what is owed stays."""
        self._left, self._per_minute, self._most = self.left, per_minute, per_minute


class Buckets:
    """Buckets by name, each full at first. `made`: how many there have been; one that was forgotten counts again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.made = 0
        self._clock = clock
        self._kept: dict[str, Bucket] = {}

    def of(self, name: str, per_minute: float, most: float | None = None) -> Bucket:
        """The bucket of this name. `most`: None: it holds a minute's worth, also once the rate changes."""
        bucket = self._kept.get(name)
        if bucket is None:
            if len(self._kept) >= MOST_KEPT:
                self._forget()
            self.made += 1
            bucket = self._kept[name] = Bucket(self._clock, per_minute, most)
        elif most is None:
            bucket.set_rate(per_minute)
        return bucket

    def _forget(self) -> None:
        """Forgets the half that is missed least, all full ones among them."""
        waits = {name: bucket.seconds_until(math.inf) for name, bucket in self._kept.items()}
        missed = sorted((name for name in waits if waits[name] > 0.0), key=waits.__getitem__)[-MOST_KEPT // 2 :]
        self._kept = {name: self._kept[name] for name in missed}


class Rates:
    """What callers may take.

    `peer_calls`, `requests`, `tokens`: a minute, where a key names no limits of its own; 0: no limit. `buckets`: of all
    callers; a fleet puts those there that know what other servers let the same callers take.
    """

    def __init__(self, peer_calls: int, requests: int, tokens: int, clock: Callable[[], float]) -> None:
        self._peer_calls = peer_calls
        self._requests = requests
        self._tokens = tokens
        self.buckets = Buckets(clock)

    def on_call(self, caller: Caller) -> None:
        """Counts a call: of a proven owner at its address, else of all strangers of that address together."""
        self._take_one(caller, "calls", caller.account(address_of(caller.peer)), self._peer_calls)

    def on_request(self, caller: Caller) -> None:
        self._take_one(caller, "requests", caller.owner, caller.limits.requests_per_minute or self._requests)

    def check_tokens(self, caller: Caller) -> None:
        meter = self.meter(caller)
        if meter is not None and (refusal := meter.refusal()) is not None:
            raise refusal

    def meter(self, caller: Caller) -> "TokenMeter | None":
        limit = caller.limits.tokens_per_minute or self._tokens
        return TokenMeter(self, caller, limit) if limit else None

    def _take_one(self, caller: Caller, what: str, whose: str, limit: int) -> None:
        if not limit:
            return
        bucket = self.buckets.of(f"{what} {whose}", limit)
        if bucket.left < 1.0:
            raise _refusal(caller, f"make {limit} {what}", bucket.seconds_until(1.0))
        bucket.take(1.0)


class TokenMeter:
    """Counts the tokens of one session's answers against its caller's limit.

    State: tokens that were taken from the bucket in advance. Invariant: once let in, an answer writes at least a piece.
    """

    def __init__(self, rates: Rates, caller: Caller, limit: int) -> None:
        self._rates = rates
        self._caller = caller
        self._limit = limit
        self._piece = max(1.0, limit * PIECE_SECONDS / MINUTE)
        self._advance = 0.0

    @property
    def _bucket(self) -> Bucket:
        return self._rates.buckets.of(f"tokens {self._caller.owner}", self._limit)

    def begin(self) -> None:
        self.end()
        if (refusal := self.refusal()) is not None:
            raise refusal
        self._advance = self._piece
        self._bucket.take(self._piece)

    def read(self, tokens: int) -> None:
        self._bucket.take(tokens)

    def write(self, tokens: int) -> None:
        beyond = max(0.0, tokens - self._advance)
        self._advance -= tokens - beyond
        if beyond:
            self._bucket.take(beyond)

    def refusal(self) -> RateLimitError | None:
        """Why the answer must pause here; None: it may continue."""
        if self._advance > 0.0 or (bucket := self._bucket).left > 0.0:
            return None
        return _refusal(self._caller, f"read and write {self._limit} tokens", bucket.seconds_until(self._piece))

    def end(self) -> None:
        """The answer is over, or interrupted: gives back what it did not use."""
        if self._advance:
            self._bucket.take(-self._advance)
            self._advance = 0.0


def address_of(peer: str) -> str:
    """The address in gRPC's name of a connection, without the port; of IPv6, the network of one site."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    try:
        address = ip_address(unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), 64), strict=False))


def _refusal(caller: Caller, what: str, seconds: float) -> RateLimitError:
    error = RateLimitError(f"The server lets {'this key' if caller.key else 'this address'} {what} a minute.")
    error.retry_after_ms = max(1, math.ceil(1e3 * seconds))
    return error
