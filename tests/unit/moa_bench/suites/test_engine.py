"""What the suites engine, cut and split find, and their tables."""

import math
import socket
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_bench.harness.split_client import Moment
from moa_bench.suites import cut
from moa_bench.suites.cut import (
    LATEST_S,
    LONGEST_S,
    SHORTEST_S,
    IncidentKind,
    InjectedIncident,
    judge_incident,
    plan_incidents,
)
from moa_bench.suites.engine import Worker, binary_tree, step_bytes
from moa_bench.suites.split.tables import ALL, PLAIN, figures_of, link_table, remarks
from moa_shared.errors import UnavailableError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.storage.tensors import HEAD

from tests.support.tiny_models import save_tiny_model, tiny_kernel_target, tiny_model


def test_a_step_reads_all_layers_and_the_head(tmp_path: Path) -> None:
    files = resolve(str(save_tiny_model(tmp_path / "tiny")), tmp_path / "cache")
    reader = WeightReader(files)
    every = sum(reader.stored_bytes(name) for name in reader.names() if "embed_tokens" not in name)
    config = files.config
    position = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert HEAD in reader.names()
    assert step_bytes(files) == (every, position)


def test_a_forward_leaves_the_context_as_it_was() -> None:
    assert binary_tree(6) == [-1, 0, 0, 1, 1, 2]
    worker = Worker(tiny_kernel_target(tiny_model(max_position_embeddings=512)))
    assert worker.read(20) > 0
    assert worker.forward(8) > 0
    assert worker.forward(1) > 0
    assert worker._cache.length == 20
    worker.read(5)
    assert worker._cache.length == 5


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers())
def test_a_plan_holds_what_was_asked_for(cuts: int, resets: int, kills: int, seed: int) -> None:
    plan = plan_incidents(cuts, resets, kills, seed)
    assert Counter(planned.kind for planned in plan) == Counter(
        {IncidentKind.CUT: cuts, IncidentKind.RESET: resets, IncidentKind.KILL: kills}
    )
    for planned in plan:
        assert 0.0 <= planned.after_s <= LATEST_S
        lasts = planned.kind is IncidentKind.CUT
        assert (SHORTEST_S <= planned.seconds <= LONGEST_S) if lasts else planned.seconds == 0.0
    assert plan == plan_incidents(cuts, resets, kills, seed)
    assert LATEST_S < max(planned.after_s for planned in plan_incidents(50, 0, 0, seed, answer_s=10.0)) <= 10.0


FOUR = [Moment(1.0, 1, 1, True), Moment(2.0, 2, 2, True), Moment(6.5, 3, 3, True), Moment(7.0, 4, 4, True)]
# Twice standalone, then the answer is full; a correction: the rest was wrong.
STANDALONE = [
    Moment(1.0, 1, 1, True), Moment(1.25, 2, 1, True), Moment(1.5, 3, 1, True), Moment(5.0, 2, 2, False),
    Moment(5.5, 3, 3, True),
]  # fmt: skip
SEVERAL = [Moment(1.0, 1, 1, True), Moment(1.5, 2, 1, True), Moment(3.25, 3, 1, True), Moment(3.75, 4, 4, True)]
FULL = [Moment(1.0, 3, 1, True), Moment(5.0, 3, 3, False)]
BEFORE = [Moment(5.0, 1, 1, True), Moment(5.25, 2, 2, True), Moment(5.75, 3, 3, True), Moment(6.0, 4, 4, True)]
NEXT = [Moment(1.0, 1, 1, True), Moment(9.0, 2, 2, True)]


@pytest.mark.parametrize(("moments", "at_s", "healed_s", "next_s", "found"), [
    pytest.param(FOUR, 2.5, 5.5, math.inf, (4500.0, 1000.0, False), id="a client that waits stalls until text"),
    pytest.param(STANDALONE, 1.125, 4.0, math.inf, (250.0, 1000.0, True), id="a standalone one until its own"),
    pytest.param(SEVERAL, 1.25, 3.5, math.inf, (1750.0, 250.0, True), id="the longest of several waits"),
    pytest.param(FULL, 2.0, 4.0, math.inf, (None, 1000.0, False), id="a full screen does not stall"),
    pytest.param(BEFORE, 5.5, 5.5625, math.inf, (500.0, 187.5, False), id="waits that ended before do not count"),
    pytest.param(NEXT, 1.5, 2.0, 3.0, (2000.0, None, False), id="the next incident ends what is said"),
    pytest.param([Moment(1.0, 1, 1, True)], 2.0, 3.0, math.inf, None, id="an answer that was over"),
])  # fmt: skip
def test_what_a_screen_says(
    moments: list[Moment], at_s: float, healed_s: float, next_s: float, found: tuple[object, ...] | None
) -> None:
    """Verdicts came whenever committed text grew."""
    pairs = pairwise([Moment(0, 0, 0, False), *moments])
    verdicts = [later.at_s for earlier, later in pairs if later.committed > earlier.committed]
    struck = InjectedIncident(IncidentKind.CUT, at_s, healed_s, next_s)
    said = judge_incident(struck, moments, verdicts, answer_tokens=max(each.length for each in moments), whole=True)
    assert (None if said is None else (said.stall_ms, said.resume_ms, said.alone)) == found


def answer(seconds: float, **fields: Any) -> dict[str, Any]:
    made = {
        "tokens": 10, "first_ms": 100.0, "seconds": seconds, "gaps_ms": [10.0, 30.0], "forwards": 5, "up": 200,
        "down": 400, "server_cpu_s": 0.05, "own_cpu_s": 0.02, "common": 10, "same": True,
    }  # fmt: skip
    return made | fields


ROUNDS = [
    {
        "link": "4G",
        "answers": {
            PLAIN: [answer(1.0, forwards=10, up=None, down=None), answer(1.0, forwards=10, up=None, down=None)],
            "EAGLE-2: synchronous rounds": [answer(2.0)],
            ALL: [answer(1.25)],
            "another": [answer(0.1, same=False)],
            "broken": [{"failure": "Nothing comes from 127.0.0.1:41234."}],
        },
    }
]


def test_speeds_are_relative_to_plain_streaming_before_and_after() -> None:
    assert figures_of(ROUNDS, ALL).over_plain == [0.8]


def test_a_link_is_a_table() -> None:
    assert link_table(ROUNDS) == snapshot("""\
| method | tokens/s | over plain | worst | first token | tokens a forward | forwards a 100 tokens | gap, ms: median | 95 % | 99 % | up a token | down a token | server's CPU, ms a token | device's |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| plain streaming | 10.0 | 1 |  | 1 | 1.00 | 100 | 20 | 30 | 30 |  |  | 5.0 | 2.0 |
| EAGLE-2: synchronous rounds | 5.0 | 0.50 (0.50 to 0.50) | 0.50 | 1.00 (1.00 to 1.00) | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |
| moa: everything on | 8.0 | 0.80 (0.80 to 0.80) | 0.80 | 1.00 (1.00 to 1.00) | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |
| another | 100.0 | another text |  | another text | 2.00 | 50 | 20 | 29 | 30 | 20 | 40 | 5.0 | 2.0 |
| broken | failed |  |  |  |  |  |  |  |  |  |  |  |  |
""")


def test_other_texts_failures_and_losses_are_told() -> None:
    assert remarks(ROUNDS) == snapshot("""\
With answers that are not plain streaming's, left out of ratios: another over 4G.
Failed over 4G: broken: Nothing comes from the link.
Slower than plain streaming with everything on: 4G (0.80).
""")


def test_an_answer_after_a_kill_is_asked_once_the_link_takes_connections_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        monkeypatch.setattr(time, "sleep", lambda seconds: link.listen())  # refused before
        cut.wait_for_listener(f"127.0.0.1:{link.getsockname()[1]}")
    monkeypatch.setattr(cut, "LISTENING_S", 0.0)
    with pytest.raises(UnavailableError, match="Nothing listens at"):
        cut.wait_for_listener("127.0.0.1:1")
