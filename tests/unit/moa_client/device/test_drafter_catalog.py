"""Which of the server's drafters a device takes: measured once, or the only one without measuring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.device import drafter_catalog
from moa_client.device.drafter_catalog import COMPANION, NOBODY, DrafterCatalog, DrafterChoice, ServerPace
from moa_client.device.sources import Sources
from moa_client.settings import ClientSettings
from moa_shared.drafter import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds.moa import ENCODER_TENSORS
from moa_shared.drafting.confidence import Agreement

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
