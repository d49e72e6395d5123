"""Which of the server's drafters a device takes: measured once, or the only one without measuring."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device import drafter_catalog
from moa_client.device.drafter_catalog import (
    COMPANION,
    DrafterCandidate,
    DrafterChoice,
    ServerPace,
    choose_drafter,
    speedup,
)
from moa_client.device.sources import Sources
from moa_client.settings import ClientSettings
from moa_shared.drafting.estimates import Agreement

ONLINE = pb.Drafter(name="online", fingerprint=b"o" * 32, tokens_a_forward=2.4)
DEEP = pb.Drafter(name="deep", fingerprint=b"d" * 32, tokens_a_forward=3.7)
SMALL = SimpleNamespace(fingerprint="small", agreement=Agreement(1000, 930))  # a companion
LEVEL_MS = {"small": 10.0, ONLINE.fingerprint.hex(): 4.0, DEEP.fingerprint.hex(): 7.5}
SLOW, FAST = ServerPace(80.0, 0.9, 0.5), ServerPace(9.0, 0.9, 0.5)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fingerprints of the drafters whose levels were timed."""
    timed: list[str] = []

    def level_ms(settings: ClientSettings, fingerprint: str, prepared: Any) -> float:
        timed.append(fingerprint)
        return LEVEL_MS[fingerprint]

    monkeypatch.setattr(drafter_catalog, "level_ms", level_ms)
    return timed


def chosen(
    server: ServerPace | None, *here: pb.Drafter, companion: Any = None, **settings: Any
) -> DrafterChoice | None:
    """Of a server with both drafters, on a device that holds some."""
    paths = {drafter.fingerprint: Path(drafter.name) for drafter in here}
    sources = Sources(pb.DescribeResponse(drafters=[ONLINE, DEEP]), cast("Any", None), paths)
    return choose_drafter(ClientSettings(**settings), sources, companion, server)


def name(*arguments: Any, **settings: Any) -> str:
    choice = chosen(*arguments, **settings)
    return choice.name if choice is not None else ""


def test_the_fastest_of_those_here_is_taken(measured: list[str]) -> None:
    assert (name(SLOW, ONLINE, DEEP), name(FAST, ONLINE, DEEP)) == ("deep", "online")
    assert sorted(measured) == sorted(2 * [each.fingerprint.hex() for each in (ONLINE, DEEP)])
    measured.clear()
    unknown = ServerPace(0.0, 0.0, 0.5)
    assert name(None, ONLINE, DEEP) == name(unknown, ONLINE, DEEP) == name(FAST, ONLINE, DEEP, drafting="off") == "deep"
    assert chosen(FAST, ONLINE, DEEP, drafter="deep") == DrafterChoice("deep", "as wished")
    assert name(FAST, ONLINE) == "online"
    assert chosen(FAST) is None
    assert measured == []


def test_a_companion_drafts_where_it_is_faster_or_nobody_else_does() -> None:
    for here in ((ONLINE,), (ONLINE, DEEP)):
        assert (name(SLOW, *here, companion=SMALL), name(FAST, *here, companion=SMALL)) == (COMPANION, "online")
        assert name(None, *here, companion=SMALL) == here[-1].name  # the companion writes without a server anyhow
    for settings in ({}, {"drafter": "none"}):
        assert chosen(FAST, companion=SMALL, **settings) == DrafterChoice(COMPANION, "the only one here")
    assert name(SLOW, ONLINE, companion=SMALL, drafter="none") == COMPANION
    assert name(SLOW, ONLINE, companion=SMALL, drafter="default") == "online"


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
