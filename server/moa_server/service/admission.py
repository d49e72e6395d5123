"""Admission of calls: keys, rights, and how many calls of an address, a connection or an owner there may be.

State: the keys in force, and what callers have taken. Invariant: strangers wait, but never at the cost of those with
good keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from moa_shared.errors import AuthenticationError

from moa_server.access.authentication import Gate, check_right
from moa_server.access.caller import Caller, Right, anonymous
from moa_server.access.rates import Rates, address_of
from moa_server.service.allowance import Allowance, Allowances, address_times
from moa_server.service.refusal_log import RefusalLog
from moa_server.settings import ServerSettings


class Admission:
    """Lets calls begin.

    Args:
        gate: the keys.
        clock: seconds, monotonic.
    """

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

        Args:
            metadata: of the call; `peer`: gRPC's name of its connection.
            certificate: whose it is that the connection has shown; empty: none.
            right: that the call needs; None: none.

        Raises:
            RateLimitError: the address, or the caller, makes too many.
            AuthenticationError, ForbiddenError: the caller may not make this call.
        """
        refusal: AuthenticationError | None = None
        try:  # first, since others behind this address, and a proxy's on this connection, may have no good key
            caller = self.gate.admit(metadata, peer, certificate)
        except AuthenticationError as error:
            caller, refusal = anonymous(peer), error
        connection = self.allowance(caller)
        address = self.address_allowances.of(caller.account(address_of(peer)))
        connection.charge_call()
        address.charge_call()
        if pause_seconds := max(connection.pause_seconds, address.pause_seconds):
            await asyncio.sleep(pause_seconds)
        self.rates.on_call(caller)
        if refusal is not None:
            connection.charge_wrong_key()
            raise refusal
        if right is not None:
            check_right(caller, right)
        if right is not Right.FETCH:  # a drafter takes dozens of calls
            self.rates.on_request(caller)
        return caller

    def allowance(self, caller: Caller) -> Allowance:
        """What a caller's connection may still cost."""
        return self.allowances.of(caller.account(caller.peer))
