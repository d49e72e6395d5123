"""The answers of the demonstration, in real time: a good link, a cut, an answer that ends without its server."""

from __future__ import annotations

from moa_client.conversation.events import AnswerOutcome, LinkState
from moa_client.tools.tool import ToolCall
from moa_shared.errors import OverloadedError
from moa_shared.protocol.finish_rule import Finish

from tests.page.fake_backend import Script
from tests.page.stage import Stage

LOST = "nothing has come from it for 0.2 s"
STEP = 0.035  # seconds a verdict

TIDES = """The Moon pulls the near side of the Earth a little harder than its centre, and the far side a little less.

That *difference* stretches the oceans into two bulges:

1. one towards the Moon, where its pull is strongest,
2. one away from it, where the pull is weakest.

As the Earth turns below them, most coasts pass **both** bulges each day. So there are about two high tides a day, \
12 hours and 25 minutes apart, because the Moon itself moves on a little meanwhile.

> When Sun and Moon pull along one line, the tide is higher: a spring tide."""

CODE = """A generator keeps only two numbers, however far it goes:

```python
from collections.abc import Iterator
from itertools import islice


def fibonacci() -> Iterator[int]:
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b


print(list(islice(fibonacci(), 10)))
```

| call | result |
| --- | ---: |
| `islice(fibonacci(), 5)` | 0, 1, 1, 2, 3 |
| the 50th number | 7,778,742,049 |

It never ends by itself; `islice` takes as many as are wanted."""

RIGHT = "A lighthouse does three things. It marks a coast, it warns of shoals, and it tells ships where they are. "
GUESS = "Each has its own rhythm of flashes, which is written on every map."
TRUTH = (
    "Each has its own rhythm of flashes, its *character*, which charts give in a short code: "
    "`Fl(3) 15s` are three flashes every fifteen seconds. Sailors count them with a watch in the hand."
)


async def plain(stage: Stage, question: str) -> None:
    """A good link."""
    await stage.commit(CODE if "Python" in question else TIDES, words=2, pause=STEP)
    stage.end()


async def cut(stage: Stage, question: str) -> None:
    """The link is lost in the middle, and comes back."""
    await stage.commit(RIGHT, words=2, pause=STEP)
    stage.link(LinkState.OFFLINE, LOST)
    await stage.write(GUESS, pause=0.25)
    stage.hold()
    await stage.pause(4.0)
    stage.link(LinkState.BACK)
    await stage.pause(0.6)
    stage.link(LinkState.GOOD)
    await stage.commit(TRUTH, words=2, pause=STEP)
    stage.end()


async def unverified(stage: Stage, question: str) -> None:
    """The answer ends without its server, which decides it later."""
    await stage.commit(RIGHT, words=2, pause=STEP)
    stage.link(LinkState.OFFLINE, LOST)
    await stage.write(GUESS, pause=0.1)
    stage.end(verified=False)
    await stage.pause(5.0)
    stage.link(LinkState.GOOD)
    stage.settle(RIGHT + TRUTH, AnswerOutcome.CORRECTED, 13, 7)


async def unread(stage: Stage, question: str) -> None:
    """No server reads the question before it is back."""
    stage.link(LinkState.OFFLINE, "the connection was refused")
    stage.hold(unread=True)
    await stage.pause(6.0)
    stage.link(LinkState.GOOD)
    await stage.commit("Here it is.", pause=STEP)
    stage.end()


async def refused(stage: Stage, question: str) -> None:
    """The server has too much to do."""
    stage.fail(OverloadedError("The server has 8 sessions, which is all it takes."), taken_back=True)


async def short(stage: Stage, question: str) -> None:
    """As many tokens as the options allow."""
    await stage.commit(" ".join(TIDES.split()[:20]), pause=STEP)
    stage.end(Finish.MAX_TOKENS)


async def calls(stage: Stage, question: str) -> None:
    """The model calls a tool."""
    await stage.commit("I look it up.", words=2, pause=STEP)
    stage.end(calls=1)
    arguments = '{"city": "Lisbon", "days": 2}'
    await stage.call(
        ToolCall("call_1", "get_forecast", arguments), "weather", '{"today": "sunny, 24 °C", "tomorrow": "rain, 19 °C"}'
    )
    await stage.commit("It is **sunny** in Lisbon today, at 24 °C. Tomorrow it rains.", words=2, pause=STEP)
    stage.end()


SCRIPTS: dict[str, Script] = {
    "lighthouse": cut,
    "unverified": unverified,
    "unread": unread,
    "refused": refused,
    "short": short,
    "weather": calls,
    "": plain,
}
