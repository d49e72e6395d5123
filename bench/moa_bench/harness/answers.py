"""One answer as a measurement sees it: its tokens and when each arrived. Plain streaming is the baseline."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import grpc
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_shared.errors import DataError, MoaError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.protobuf_messages import settings_to_proto

ANSWER_TIMEOUT_S = 300.0  # of a whole answer: the longest measured ones take half a minute
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
OPEN_TIMEOUT_S = 10.0  # for a connection over a link with a round trip of 300 ms


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """An answer and when its tokens arrived."""

    tokens: tuple[int, ...]  # of the answer
    arrivals_s: tuple[float, ...]  # of each token, seconds from the question; tokens of one verdict arrive together

    @property
    def first_ms(self) -> float:
        """Time from the question to the first token."""
        return self.arrivals_s[0] * 1e3

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over the whole answer, the wait for the first token included."""
        return len(self.tokens) / self.arrivals_s[-1]


def common_tokens(tokens: Sequence[int], reference: Sequence[int]) -> int:
    """How many first tokens of two texts are alike."""
    pairs = zip(tokens, reference, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class PlainClient:
    """Calls `Generate`: what a user without any drafter would see.

    Args:
        address: "host:port".
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.up_bytes = self.down_bytes = 0  # of the newest answer's messages
        self._channel = grpc.insecure_channel(address, OWN_CONNECTION)
        self._stub = moa_pb2_grpc.MoaStub(self._channel)

    def open(self) -> None:
        """Opens the connection, which the first call would do."""
        try:
            grpc.channel_ready_future(self._channel).result(OPEN_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise UnavailableError(
                f"There is no answer from {self._address} within {OPEN_TIMEOUT_S:g} s.",
                hint="See whether the server and the emulated link are still running.",
            ) from None

    def close(self) -> None:
        self._channel.close()

    def ask(self, prompt: Sequence[int], settings: AnswerSettings, *, server_drafts: bool = False) -> TimedAnswer:
        sampling = settings_to_proto(settings)
        request = pb.GenerateRequest(tokens=prompt, sampling=sampling, server_drafts=server_drafts)
        self.up_bytes, self.down_bytes = request.ByteSize(), 0
        tokens: list[int] = []
        arrivals: list[float] = []
        began = time.perf_counter()
        try:
            for response in self._stub.Generate(request, timeout=ANSWER_TIMEOUT_S):
                now = time.perf_counter() - began
                self.down_bytes += response.ByteSize()
                tokens.extend(response.tokens)
                arrivals.extend([now] * len(response.tokens))
        except grpc.RpcError as error:
            refusal: MoaError = error_from_rpc(error)
            raise refusal from error
        if not tokens:
            raise DataError("The server gave an empty answer.", hint="Ask another question.")
        return TimedAnswer(tuple(tokens), tuple(arrivals))
