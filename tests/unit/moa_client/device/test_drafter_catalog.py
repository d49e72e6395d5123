"""Which of the server's drafters a device takes: measured once, or the only one without measuring."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.device import drafter_catalog
from moa_client.device.drafter_catalog import (
    COMPANION,
    HYSTERESIS,
    NOBODY,
    DrafterCandidate,
    DrafterCatalog,
    DrafterChoice,
    ServerPace,
    choose,
    level_ms,
    speedup,
)
from moa_client.device.sources import Sources
from moa_client.settings import ClientSettings
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa import ENCODER_TENSORS
from moa_shared.drafter.layers.weights import ArrayWeights
from moa_shared.drafting.confidence import Agreement
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD

from tests.support.decoders import EVEN

ONLINE = pb.Drafter(name="online", fingerprint=b"o" * 32, tokens_a_forward=2.4)
DEEP = pb.Drafter(name="deep", fingerprint=b"d" * 32, tokens_a_forward=3.7)
SMALL = SimpleNamespace(fingerprint="small", new_state=None, agreement=Agreement(1000, 930))  # a companion
LEVEL_MS = {"small": 10.0, ONLINE.fingerprint.hex(): 4.0, DEEP.fingerprint.hex(): 7.5}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Fingerprints and breadths of the levels that were timed."""
    timed: list[tuple[str, int]] = []

    def level_ms(root: Path, fingerprint: str, breadth: int, load: Any) -> float:
        timed.append((fingerprint, breadth))
        return LEVEL_MS[fingerprint]

    monkeypatch.setattr(drafter_catalog, "level_ms", level_ms)
    return timed


def catalog(*here: pb.Drafter, load: Any = lambda path: path, companion: Any = None, **settings: Any) -> DrafterCatalog:
    """Of a server with both drafters, on a device that holds some."""
    paths = {drafter.fingerprint: Path(drafter.name) for drafter in here}
    sources = Sources(pb.DescribeResponse(drafters=[ONLINE, DEEP]), cast("Any", None), paths)
    return DrafterCatalog(ClientSettings(**settings), sources, companion, load=load)


def test_the_fastest_of_those_here_is_taken(measured: list[tuple[str, int]]) -> None:
    both = catalog(ONLINE, DEEP, mode="chain")
    assert both.choose(ServerPace(50.0, 0.9, 0.5)).name == "deep"
    assert both.choose(ServerPace(9.0, 0.9, 0.5)).name == "online"
    assert both.choose(None).name == "deep"  # without a server the one that writes best
    assert sorted(measured) == sorted((each.fingerprint.hex(), 1) for each in (ONLINE, DEEP))  # once each


def test_the_one_that_was_asked_for_is_taken(measured: list[tuple[str, int]]) -> None:
    choice = catalog(ONLINE, DEEP, drafter="deep").choose(ServerPace(50.0, 0.9, 0.5))
    assert (choice.name, choice.reason, measured) == ("deep", "as wished", [])


def test_a_device_that_does_not_draft_for_the_server_takes_the_one_that_writes_best(
    measured: list[tuple[str, int]],
) -> None:
    choice = catalog(ONLINE, DEEP, drafting="server").choose(ServerPace(9.0, 0.9, 0.5))
    assert choice.name == "deep"
    assert choice.reason == snapshot("this device does not draft for the server: the one that writes best by itself")


def checkpoints(online_layers: int, deep_layers: int, *, share: bool) -> Callable[[Path], Checkpoint]:
    """Loads drafters with so many reused layers, which read the same memory rows or not."""

    def load(path: Path) -> Checkpoint:
        is_online = path.name == "online"
        config = replace(EVEN, reused_layers=online_layers if is_online else deep_layers)
        tensors = dict(fresh_tensors(config, seed=int(is_online)))
        if share:
            encoder = fresh_tensors(config, seed=7).items()
            tensors |= {name: tensor for name, tensor in encoder if name.startswith(ENCODER_TENSORS)}
        return Checkpoint(config, tensors, "")

    return load


@pytest.mark.parametrize(
    ("online_layers", "deep_layers", "share", "beside"),
    [(1, 3, True, "deep"), (1, 3, False, None), (0, 3, True, None), (3, 1, True, None)],
    ids=["deeper, same memory", "another memory", "online one reuses none", "less deep"],
)
def test_the_one_that_writes_best_joins_one_that_reads_the_same(
    measured: list[tuple[str, int]], online_layers: int, deep_layers: int, share: bool, beside: str | None
) -> None:
    both = catalog(ONLINE, DEEP, load=checkpoints(online_layers, deep_layers, share=share))
    found = both.standalone_for("online", both.checkpoint("online"))
    assert (found and found[0]) == beside
    assert both.standalone_for("deep", both.checkpoint("deep")) is None
    assert catalog(ONLINE).standalone_for("online", both.checkpoint("online")) is None


def test_a_companion_drafts_where_it_is_faster(measured: list[tuple[str, int]]) -> None:
    for here in ((ONLINE,), (ONLINE, DEEP)):
        beside = catalog(*here, companion=SMALL)
        assert beside.choose(ServerPace(80.0, 0.9, 0.5)).name == COMPANION
        assert beside.choose(ServerPace(9.0, 0.9, 0.5)).name == "online"
        assert beside.choose(None).name == here[-1].name  # the companion writes without a server anyhow
        assert beside.choose(ServerPace(0.0, 0.0, 0.5)).name == "online"


def test_a_companion_drafts_where_nobody_else_does_unless_it_is_too_slow(measured: list[tuple[str, int]]) -> None:
    for alone in (catalog(companion=SMALL), catalog(ONLINE, companion=SMALL, drafter="none")):
        assert not alone.is_empty
        assert alone.choose(None) == DrafterChoice(COMPANION, "the only one here")
        assert alone.choose(ServerPace(30.0, 0.9, 0.5)).name == COMPANION
        slow = alone.choose(ServerPace(9.0, 0.9, 0.5), COMPANION)
        assert slow == DrafterChoice(
            NOBODY,
            snapshot(
                "the companion is too slow to draft for the server: a level of its drafts takes 10 ms, a step of the server 9 ms"
            ),
        )


VOCAB = 64
FINGERPRINT = "ab" * 32
CONFIG = DrafterConfig(
    vocab_size=VOCAB, hidden_size=32, target_layers=3, target_heads=4, target_kv_heads=2, target_head_dim=8,
    sa_kv_heads=2, sa_mlp=32, ca_kv_heads=2, ca_mlp=32, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=32,
)  # fmt: skip


def test_a_block_is_measured_by_its_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, kind="dflash", state_entries=(1,), block_size=6)
    checkpoint, table = Checkpoint(config, fresh_tensors(config, seed=0), FINGERPRINT), np.ones((VOCAB, 32), np.float32)
    states = checkpoint.states(ArrayWeights({EMBEDDINGS: table, HEAD: table}), "float32")
    now = iter(float(tick) for tick in range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    assert level_ms(tmp_path, FINGERPRINT, 3, lambda: (config, cast("Any", states()))) == 1000 / 5


DRAFTER_CHOICE_ONLINE, DEEPER = DrafterCandidate("online", 4.2, 2.40), DrafterCandidate("deep", 7.5, 3.71)
SLOW_ONLINE, SLOW_DEEPER = DrafterCandidate("online", 11.0, 2.40), DrafterCandidate("deep", 22.0, 3.71)


@pytest.mark.parametrize(
    ("candidates", "server", "name"),
    [
        ((DRAFTER_CHOICE_ONLINE, DEEPER), ServerPace(50.0, 0.9, 0.5), "deep"),  # a large target
        ((DRAFTER_CHOICE_ONLINE, DEEPER), ServerPace(50.0, 0.9, 60.0), "deep"),
        (
            (DRAFTER_CHOICE_ONLINE, DEEPER),
            ServerPace(12.0, 0.9, 0.5),
            "online",
        ),  # a step hardly longer than a level of the deep one
        ((SLOW_ONLINE, SLOW_DEEPER), ServerPace(25.0, 0.9, 0.5), "online"),  # a slow device
        ((DRAFTER_CHOICE_ONLINE, DEEPER), ServerPace(3.0, 0.1, 0.5), "online"),  # neither helps: the first
    ],
)
def test_the_faster_one_is_taken(candidates: tuple[DrafterCandidate, ...], server: ServerPace, name: str) -> None:
    choice = choose(candidates, server)
    assert choice.name == name
    assert f"{server.step_ms:.0f} ms a step" in choice.reason
    assert all(candidate.name in choice.reason for candidate in candidates)


def test_the_one_in_use_stays_unless_another_is_clearly_faster() -> None:
    server = ServerPace(12.0, 0.9, 0.5)
    assert speedup(DRAFTER_CHOICE_ONLINE, server) < HYSTERESIS * speedup(DEEPER, server)
    assert choose((DRAFTER_CHOICE_ONLINE, DEEPER), server, "deep").name == "deep"
    assert choose((DRAFTER_CHOICE_ONLINE, DEEPER), ServerPace(50.0, 0.9, 0.5), "online").name == "deep"


@pytest.mark.parametrize(
    ("server", "level_ms", "tokens", "simulated"),
    [  # moa_bench.suites.scale.simulator: 250 tokens, three seeds, chains that are right with 1 - 1 / tokens
        (ServerPace(12, 0.9, 0.5), 4.2, 2.4, 1.211),
        (ServerPace(12, 0.9, 0.5), 7.5, 3.7, 1.136),
        (ServerPace(12, 0.9, 30), 7.5, 3.7, 1.001),
        (ServerPace(25, 1.0, 10), 7.5, 3.7, 1.334),
        (ServerPace(50, 0.9, 0.5), 7.5, 3.7, 1.840),
        (ServerPace(50, 0.9, 30), 4.2, 2.4, 1.226),
    ],
)
def test_it_agrees_with_the_simulation(server: ServerPace, level_ms: float, tokens: float, simulated: float) -> None:
    assert speedup(DrafterCandidate("", level_ms, tokens), server) == pytest.approx(simulated, rel=0.12)


@given(st.floats(0.1, 200), st.floats(0, 10), st.floats(1, 200), st.floats(0, 5), st.floats(0, 1000))
def test_no_drafter_is_expected_to_cost_time(level: float, tokens: float, step: float, row: float, rtt: float) -> None:
    assert 1.0 <= speedup(DrafterCandidate("", level, tokens), ServerPace(step, row, rtt)) <= max(10.0, tokens)
