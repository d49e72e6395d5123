"""The simulated world itself: its page's example, its links, and that its expectation can fail."""

import asyncio
import re
from pathlib import Path

import pytest
from moa_testing import World, simulate
from moa_testing.world import LONG
from netsim.core.conditions import Bernoulli, Conditions, DelaySpec

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(example, {})
    assert re.fullmatch(r"80 tokens, \d\d of them first written by the device\n", capsys.readouterr().out)


@pytest.mark.parametrize(("link", "least", "most"), [
    (Conditions(delay=DelaySpec(100.0)), 0.2, 0.25),
    (Conditions(delay=DelaySpec(1.0), rate_bps=8e3), 0.2, 1.0),  # 100 bytes take 0.1 s each way
    (Conditions(delay=DelaySpec(1.0), loss=Bernoulli(1.0)), 5.0, 5.1),  # until the client gives the attempt up
], ids=["delay", "rate", "loss"])  # fmt: skip
def test_a_link_is_what_netsim_makes_of_its_conditions(link: Conditions, least: float, most: float) -> None:
    async def story(world: World) -> None:
        began = asyncio.get_running_loop().time()
        await asyncio.gather(world.server().describe(), return_exceptions=True)
        assert least <= asyncio.get_running_loop().time() - began <= most

    simulate(story, link=link)


def test_what_was_planned_and_has_not_happened_is_an_error() -> None:
    async def story(world: World) -> None:
        await world.chat().then(world.restart, committed=LONG.max_tokens + 1).ask()

    with pytest.raises(AssertionError, match="not all that the test has planned"):
        simulate(story)


def test_who_waits_for_ever_is_told() -> None:
    async def story(_: World) -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="somebody waits for ever"):
        simulate(story)


def test_a_seed_decides_all_that_happens() -> None:
    seen = []

    async def story(world: World) -> None:
        chat = world.chat()
        chat.then(lambda: world.link().cut(seconds=2.0), committed=10)
        seen.append((await chat.ask()).events)

    for seed in (1, 1, 2):
        simulate(story, seed)
    assert seen[0] == seen[1] != seen[2]
