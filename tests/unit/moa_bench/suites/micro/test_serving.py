"""First tokens and bytes, with clients and a counter that the test drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moa_bench.harness.answers import TimedAnswer
from moa_bench.harness.byte_counter import SocketBytes
from moa_bench.suites.micro.serving import STEADY_AFTER_TOKENS, measure_first_tokens, measure_traffic
from moa_shared.protocol.finish_rule import AnswerSettings


class Counter:
    """Each token costs 3 bytes up and 10 down; a connection and a prompt 1,000 each."""

    def __init__(self) -> None:
        self.now = SocketBytes(0, 0)

    def read(self) -> SocketBytes:
        return self.now


class Client:
    def __init__(self, first_ms: float, counter: Counter | None = None, step: int = 1) -> None:
        self.first_ms = first_ms
        self.counter = counter or Counter()
        self.step = step
        self.asked = 0

    def ask(
        self, prompt: Sequence[int], settings: AnswerSettings, watch: Callable[[int], object] = lambda count: None
    ) -> TimedAnswer:
        self.asked += 1
        counter = self.counter
        counter.now = SocketBytes(counter.now.up + 1000, counter.now.down + 1000)
        for count in range(self.step, settings.max_tokens + 1, self.step):
            counter.now = SocketBytes(counter.now.up + 3 * self.step, counter.now.down + 10 * self.step)
            watch(count)
        arrivals = tuple(self.first_ms / 1e3 + place // self.step for place in range(settings.max_tokens))
        return TimedAnswer(tuple(range(settings.max_tokens)), arrivals)

    def close(self) -> None:
        pass


def test_first_tokens_are_held_against_the_first_way() -> None:
    plain, split = Client(50.0), Client(60.0)
    found = measure_first_tokens({"plain": plain, "split": split}, [[1] * 5, [1] * 9], answers=3)
    assert [(cost.way, cost.prompt_tokens, cost.ms.median, cost.ratio.median) for cost in found] == [
        ("plain", 5, 50.0, 1.0),
        ("split", 5, 60.0, 1.2),
        ("plain", 9, 50.0, 1.0),
        ("split", 9, 60.0, 1.2),
    ]
    assert plain.asked == split.asked == 8  # one round for each prompt warms up


def test_steady_bytes_leave_connection_and_prompt_out() -> None:
    for step in (1, 3):
        client = Client(50.0, step=step)
        traffic = measure_traffic("plain", client, client.counter, [1] * 5, 60)  # type: ignore[arg-type]
        assert (traffic.up_a_token, traffic.down_a_token) == (3.0, 10.0)
        assert traffic.whole == SocketBytes(1180, 1600)
        assert traffic.tokens_a_verdict == step
    assert STEADY_AFTER_TOKENS < 60


def test_an_answer_of_one_verdict_still_has_a_figure() -> None:
    client = Client(50.0, step=4)
    traffic = measure_traffic("plain", client, client.counter, [1], 4)  # type: ignore[arg-type]
    assert traffic.whole == SocketBytes(1012, 1040)
