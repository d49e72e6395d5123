"""One Embed call: a text as one vector, of the states that leave the target's last layer and norm.

State: a session of its own, which no client can find, freed when the call ends. Chunks of the text take their turn
among the forwards of answers, so that a long text delays nobody for longer than a prompt would.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ContextLengthError, InternalError
from moa_shared.models.pooling import Pooling

from moa_server.access.caller import Caller
from moa_server.engine.live.live_session import LiveSession
from moa_server.service.lifecycle import Lifecycle
from moa_server.service.services import Services

Vector = npt.NDArray[np.float64]


class Embedding:
    """Embeds texts of one caller."""

    def __init__(self, services: Services, lifecycle: Lifecycle, caller: Caller) -> None:
        self._services = services
        self._lifecycle = lifecycle
        self._caller = caller

    async def run(self, request: pb.EmbedRequest) -> pb.EmbedResponse:
        """The vector of a text.

        Raises:
            MoaError: a request that cannot be served, or a failure of the target.
        """
        services, tokens = self._services, tuple(request.tokens)
        self._lifecycle.check_open()
        if len(tokens) > services.served.context_tokens:
            raise ContextLengthError(
                f"The text has {len(tokens)} tokens, at most {services.served.context_tokens} fit.",
                hint="Send it in parts.",
            )
        live = services.registry.new()
        live.caller = self._caller
        services.let_in(live, self._caller)
        live.turn.occupy()  # its keys and values must not be given to others meanwhile
        try:
            live.account.usage.on_ask(1, len(tokens))
            services.pool.reserve(live, live.tensors.cache.most_nbytes(len(tokens)))
            vector = await self._read(live, tokens)
        finally:
            live.turn.vacate()
            services.registry.close(live)
        pooling = services.served.pooling
        return pb.EmbedResponse(values=vector, pooling=pooling.kind.name, trained=pooling.is_trained)

    async def _read(self, live: LiveSession, tokens: Sequence[int]) -> Vector:
        """Reads a text in chunks, and pools the states of its tokens."""
        services, chunk = self._services, self._services.settings.prefill_chunk
        is_mean = services.served.pooling.kind is Pooling.MEAN
        total: Vector | None = None
        for start in range(0, max(1, len(tokens)), chunk):
            part = tokens[start : start + chunk]
            states = await services.engine.between_forwards(partial(self._states, live, part, only_last=not is_mean))
            live.account.pay(len(part), 0, answering=True)
            total = states if total is None or not is_mean else total + states
        if total is None:
            raise InternalError("A text was read in no chunk.")
        return total / len(tokens) if is_mean else total

    def _states(self, live: LiveSession, tokens: Sequence[int], *, only_last: bool) -> Vector:
        """The sum of the tokens' states, or the last one's; on the inference thread."""
        target = self._services.engine.stepper.target
        output = target.forward(live.tensors.cache, tokens, None, (), target.layer_count)
        if output.state is None:
            raise InternalError("A forward gave no states.")
        states = target.normed(output.state[-1:] if only_last else output.state)
        summed: Vector = states.sum(axis=0, dtype=np.float64)
        return summed
