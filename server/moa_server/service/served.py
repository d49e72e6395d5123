"""What a server serves: the target, its execution and its drafters, as clients are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ConfigError
from moa_shared.models.pooling import UNKNOWN_POOLING, ModelPooling
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_server.drafting.forward_cost import TORCH, RowShares

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler


@dataclass(frozen=True, slots=True)
class Served:
    """The target as the service needs to know it.

    Args:
        identity: what clients must hold in common with it.
        context_tokens: the most tokens of a conversation.
        end_of_text: token ids that end an answer.
        decode: text of some tokens.
        drafters: those whose memory is served.
        step_ms: time of a plain step at the start; 0: not measured.
        row_shares: what further rows added to it.
        constraints: compiles the forms of answers; None: it has none.
        pooling: how the states of a text become its embedding.
        raw_text_only: the target has no chat template.
    """

    identity: pb.Identity
    execution: pb.Execution
    vocab_size: int
    context_tokens: int
    end_of_text: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    drafters: tuple[pb.Drafter, ...] = ()
    step_ms: float = 0.0
    row_shares: RowShares = TORCH
    constraints: ConstraintCompiler | None = None
    pooling: ModelPooling = UNKNOWN_POOLING
    raw_text_only: bool = False

    def new_execution(self, before: bytes) -> pb.NewExecution | None:
        """The message for a client whose conversation began on another execution than this server's."""
        if before == self.identity.execution:
            return None
        return pb.NewExecution(
            fingerprint=self.identity.execution, execution=self.execution, end_of_text=sorted(self.end_of_text)
        )

    def check_vocabulary(self, settings: AnswerSettings) -> None:
        """Raises ConfigError if a client's settings name a token that the target does not have."""
        for token, _ in settings.sampling.logit_bias[-1:]:  # the largest
            if token >= self.vocab_size:
                raise ConfigError(
                    f"logit_bias names token {token}, outside the vocabulary (0 to {self.vocab_size - 1}).",
                    hint="Use the server's tokenizer.",
                )
