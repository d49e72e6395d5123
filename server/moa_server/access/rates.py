"""What a caller may take in a minute: calls from an address, requests and tokens of an owner. Pure but for its clock.

Tokens are those that the target computes: read of prompts and not found in a cache, or written; a token is not paid
for twice because it is kept. A question is let in while anything is left, however long it is, and may go into debt;
so a limit that is smaller than a prompt delays the next question, and makes none impossible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

from moa_shared.errors import RateLimitError

from moa_server.access.buckets import MINUTE, Buckets
from moa_server.access.caller import Caller

# Of its limit, what an answer writes at a time once the limit is reached: text for some seconds, not word by word.
PIECE_SECONDS = 10.0
IPV6_NETWORK_BITS = 64  # one site has as many addresses


class Rates:
    """The buckets of all callers.

    Args:
        peer_calls, requests, tokens: a minute, where a key names no limits of its own; 0: no limit.
        clock: seconds, monotonic.
    """

    def __init__(self, peer_calls: int, requests: int, tokens: int, clock: Callable[[], float]) -> None:
        self._peer_calls = peer_calls
        self._requests = requests
        self._tokens = tokens
        self._clock = clock
        self._of_peers, self._of_requests, self._of_tokens = Buckets(), Buckets(), Buckets()

    def share(self, calls: Buckets, requests: Buckets, tokens: Buckets) -> None:
        """Takes from these buckets, which know what other servers let the same callers take."""
        self._of_peers, self._of_requests, self._of_tokens = calls, requests, tokens

    def on_call(self, caller: Caller) -> None:
        """Counts a call: of a proven owner at its address, else of all strangers of that address together.

        Raises:
            RateLimitError: there were too many; this one is not counted.
        """
        if limit := self._peer_calls:
            whom, where = ("client", " from one address") if caller.is_proven else ("address", "")
            words = f"This {whom} may make {limit} calls a minute{where}."
            self._take_one(self._of_peers, caller.account(address_of(caller.peer)), limit, words)

    def on_request(self, caller: Caller) -> None:
        """Counts a call or a question of an owner.

        Raises:
            RateLimitError: as above.
        """
        if limit := caller.limits.requests_per_minute or self._requests:
            words = f"The server lets {_whom(caller)} make {limit} requests a minute."
            self._take_one(self._of_requests, caller.owner, limit, words)

    def check_tokens(self, caller: Caller) -> None:
        """Raises RateLimitError if nothing is left for the caller."""
        if (refusal := self.token_refusal(caller)) is not None:
            raise refusal

    def meter(self, caller: Caller) -> TokenMeter | None:
        """Counts the tokens of one session; None: the caller has no limit."""
        return TokenMeter(self, caller) if self._token_limit(caller) else None

    def token_refusal(self, caller: Caller) -> RateLimitError | None:
        """Why the caller may have no token now; None: it may."""
        limit, now = self._token_limit(caller), self._clock()
        if not limit:
            return None
        bucket = self._of_tokens.of(caller.owner, limit, now)
        if bucket.left(now) > 0.0:
            return None
        words = f"The server lets {_whom(caller)} read and write {limit} tokens a minute."
        return _refusal(words, bucket.seconds_until(_piece(limit), now))

    def take_piece(self, caller: Caller) -> float:
        """Takes tokens for some seconds of text; how many.

        Raises:
            RateLimitError: nothing is left.
        """
        self.check_tokens(caller)
        piece = _piece(self._token_limit(caller))
        self.take_tokens(caller, piece)
        return piece

    def take_tokens(self, caller: Caller, tokens: float) -> None:
        """Takes tokens, whether they are there or not."""
        if tokens and (limit := self._token_limit(caller)):
            now = self._clock()
            self._of_tokens.of(caller.owner, limit, now).take(tokens, now)

    def _token_limit(self, caller: Caller) -> int:
        return caller.limits.tokens_per_minute or self._tokens

    def _take_one(self, buckets: Buckets, name: str, limit: int, words: str) -> None:
        now = self._clock()
        bucket = buckets.of(name, limit, now)
        if bucket.left(now) < 1.0:
            raise _refusal(words, bucket.seconds_until(1.0, now))
        bucket.take(1.0, now)


class TokenMeter:
    """Counts the tokens of one session's answers against its caller's limit.

    State: tokens that were taken from the bucket in advance. Invariant: once let in, an answer writes at least a piece.

    Args:
        rates: of all callers.
        caller: who pays.
    """

    def __init__(self, rates: Rates, caller: Caller) -> None:
        self._rates = rates
        self._caller = caller
        self._advance = 0.0

    def begin(self) -> None:
        """Lets an answer begin or continue.

        Raises:
            RateLimitError: nothing is left.
        """
        self.end()
        self._advance = self._rates.take_piece(self._caller)

    def read(self, tokens: int) -> None:
        """Pays for tokens of a prompt."""
        self._rates.take_tokens(self._caller, tokens)

    def write(self, tokens: int) -> None:
        """Pays for tokens of an answer."""
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
