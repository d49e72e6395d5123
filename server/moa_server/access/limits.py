"""Who makes a call, and what a caller may take in a minute. Pure but for its clock, whose readings are in seconds.

Tokens are those that the target computes: read of prompts and not found in a cache, or written; a token is not paid
for twice because it is kept. A question is let in while anything is left, however long it is, and may go into debt;
so a limit that is smaller than a prompt delays the next question, and makes none impossible.

State: what is left in each bucket. Invariants: a bucket never holds more than one minute's worth; at most MOST_KEPT are
remembered, and those forgotten first are full or nearly so.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

from moa_shared.errors import RateLimitError
from moa_shared.plain_text import plain_line


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


def certificate_name(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """The subject's common name, else its first alternative name; empty: there was no certificate."""
    for name_field in ("x509_common_name", "x509_subject_alternative_name"):  # of gRPC's auth context
        for value in auth_context.get(name_field, ()):
            if name := plain_line(value.decode(errors="replace")):
                return name
    return ""


def caller_without_key(peer: str, certificate: str) -> Caller:
    """The caller of a server that wants no keys: its certificate's subject, or as far as the address says.

    `certificate`: `certificate_name`.
    """
    return Caller(f"certificate {certificate}", peer, is_proven=True) if certificate else anonymous(peer)


MINUTE = 60.0  # seconds
MOST_KEPT = 8192  # buckets, 200 bytes each
# Of its limit, what an answer writes at a time once the limit is reached: text for some seconds, not word by word.
PIECE_SECONDS = 10.0
IPV6_NETWORK_BITS = 64  # one site has as many addresses


class Bucket:
    """What is left of a minute's worth.

    `per_minute`: how much flows in, and the most that it holds. `taken`: all that was taken, less what was given back.
    """

    def __init__(self, per_minute: int, now: float) -> None:
        self.taken = 0.0
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._at = now

    def left(self, now: float) -> float:
        """What may be taken; negative: what is owed."""
        self._left = min(float(self._per_minute), self._left + self._per_minute * (now - self._at) / MINUTE)
        self._at = now
        return self._left

    def take(self, amount: float, now: float) -> None:
        """Takes an amount, whether it is there or not; a negative one is given back."""
        self._left = self.left(now) - amount
        self.taken += amount

    def seconds_until(self, amount: float, now: float) -> float:
        """How long it takes until `amount` may be taken, which is at most a minute's worth."""
        return max(0.0, min(amount, self._per_minute) - self.left(now)) * MINUTE / self._per_minute

    def set_left(self, amount: float, now: float) -> None:
        """Takes what is left from another server's count."""
        self._left = min(float(self._per_minute), amount)
        self._at = now

    def set_rate(self, per_minute: int, now: float) -> None:
        """What flows in has changed; what is owed stays."""
        if per_minute != self._per_minute:
            self.left(now)
            self._per_minute = per_minute


class Buckets:
    def __init__(self) -> None:
        self._kept: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, name: str, per_minute: int, now: float) -> Bucket:
        """The bucket of this name, which is full if it is new."""
        bucket = self._kept.get(name)
        if bucket is None:
            if len(self._kept) >= MOST_KEPT:
                self._forget(now)
            bucket = self._kept[name] = Bucket(per_minute, now)
        bucket.set_rate(per_minute, now)
        return bucket

    def _forget(self, now: float) -> None:
        """Forgets the half that is missed least, all full ones among them."""
        waits = {name: bucket.seconds_until(math.inf, now) for name, bucket in self._kept.items()}
        missed = sorted((name for name in waits if waits[name] > 0.0), key=waits.__getitem__)[-MOST_KEPT // 2 :]
        self._kept = {name: self._kept[name] for name in missed}


class Rates:
    """The buckets of all callers.

    `peer_calls`, `requests`, `tokens`: a minute, where a key names no limits of its own; 0: no limit.
    """

    def __init__(self, peer_calls: int, requests: int, tokens: int, clock: Callable[[], float]) -> None:
        self._peer_calls = peer_calls
        self._requests = requests
        self._tokens = tokens
        self._clock = clock
        self._buckets = Buckets()

    def share(self, buckets: Buckets) -> None:
        """Takes from these buckets, which know what other servers let the same callers take."""
        self._buckets = buckets

    def on_call(self, caller: Caller) -> None:
        """Counts a call: of a proven owner at its address, else of all strangers of that address together."""
        if limit := self._peer_calls:
            whom, where = ("client", " from one address") if caller.is_proven else ("address", "")
            words = f"This {whom} may make {limit} calls a minute{where}."
            self._take_one(f"calls {caller.account(address_of(caller.peer))}", limit, words)

    def on_request(self, caller: Caller) -> None:
        if limit := caller.limits.requests_per_minute or self._requests:
            words = f"The server lets {_whom(caller)} make {limit} requests a minute."
            self._take_one(f"requests {caller.owner}", limit, words)

    def check_tokens(self, caller: Caller) -> None:
        if (refusal := self.token_refusal(caller)) is not None:
            raise refusal

    def meter(self, caller: Caller) -> "TokenMeter | None":
        return TokenMeter(self, caller) if self._token_limit(caller) else None

    def token_refusal(self, caller: Caller) -> RateLimitError | None:
        """Why the caller may have no token now; None: it may."""
        limit, now = self._token_limit(caller), self._clock()
        if not limit:
            return None
        bucket = self._buckets.of(f"tokens {caller.owner}", limit, now)
        if bucket.left(now) > 0.0:
            return None
        words = f"The server lets {_whom(caller)} read and write {limit} tokens a minute."
        return _refusal(words, bucket.seconds_until(_piece(limit), now))

    def take_piece(self, caller: Caller) -> float:
        """Takes tokens for some seconds of text; how many."""
        self.check_tokens(caller)
        piece = _piece(self._token_limit(caller))
        self.take_tokens(caller, piece)
        return piece

    def take_tokens(self, caller: Caller, tokens: float) -> None:
        """Takes tokens, whether they are there or not."""
        if tokens and (limit := self._token_limit(caller)):
            now = self._clock()
            self._buckets.of(f"tokens {caller.owner}", limit, now).take(tokens, now)

    def _token_limit(self, caller: Caller) -> int:
        return caller.limits.tokens_per_minute or self._tokens

    def _take_one(self, name: str, limit: int, words: str) -> None:
        now = self._clock()
        bucket = self._buckets.of(name, limit, now)
        if bucket.left(now) < 1.0:
            raise _refusal(words, bucket.seconds_until(1.0, now))
        bucket.take(1.0, now)


class TokenMeter:
    """Counts the tokens of one session's answers against its caller's limit.

    State: tokens that were taken from the bucket in advance. Invariant: once let in, an answer writes at least a piece.
    """

    def __init__(self, rates: Rates, caller: Caller) -> None:
        self._rates = rates
        self._caller = caller
        self._advance = 0.0

    def begin(self) -> None:
        self.end()
        self._advance = self._rates.take_piece(self._caller)

    def read(self, tokens: int) -> None:
        self._rates.take_tokens(self._caller, tokens)

    def write(self, tokens: int) -> None:
        beyond = max(0.0, tokens - self._advance)
        self._advance -= tokens - beyond
        self._rates.take_tokens(self._caller, beyond)

    def refusal(self) -> RateLimitError | None:
        """Why the answer must pause here; None: it may continue."""
        return None if self._advance > 0.0 else self._rates.token_refusal(self._caller)

    def end(self) -> None:
        """The answer is over, or interrupted: gives back what it did not use."""
        advance, self._advance = self._advance, 0.0
        self._rates.take_tokens(self._caller, -advance)


def address_of(peer: str) -> str:
    """The address in gRPC's name of a connection, without the port; of IPv6, the network of one site."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        network = int(address) >> (128 - IPV6_NETWORK_BITS) << (128 - IPV6_NETWORK_BITS)
        return f"{IPv6Address(network)}/{IPV6_NETWORK_BITS}"
    return str(address)


def _piece(per_minute: int) -> float:
    return max(1.0, per_minute * PIECE_SECONDS / MINUTE)


def _whom(caller: Caller) -> str:
    return "this key" if caller.key else "this address"


def _refusal(words: str, seconds: float) -> RateLimitError:
    error = RateLimitError(words)
    error.retry_after_ms = max(1, math.ceil(1e3 * seconds))
    return error
