"""What carries a link's traffic: real packets between two namespaces (tun), or a byte stream (proxy)."""

from typing import Any, Protocol

from netsim.core.link import Direction, LinkModel
from netsim.profiles import Scenario
from netsim.recorder import RunRecorder
from netsim.run.loop import Loop


class Backend(Protocol):
    """A link that carries traffic; owns what it has opened and both directions' models."""

    name: str
    loop: Loop
    recorder: RunRecorder
    links: dict[Direction, LinkModel]

    def __init__(self, loop: Loop, scenario: Scenario, recorder: RunRecorder) -> None:
        self.loop, self.recorder, self.links = loop, recorder, scenario.models(recorder.packet)

    def endpoint(self) -> str:
        """HOST:PORT at which clients reach the far end of the link."""

    def facts(self) -> dict[str, Any]:
        """What the summary says about this backend in particular."""

    def connections(self) -> int:
        """Connections that are open."""

    def on_cut(self, direction: Direction, t: float) -> None:
        """A direction was cut without warning: what is in flight is lost."""

    def reset(self) -> int:
        """Ends every connection with a reset; returns how many there were."""

    def fin(self) -> int:
        """Ends every connection in the orderly way, as a middle box would; returns how many there were."""

    def refuse(self, refusing: bool) -> None:
        """Refuses new connections from now on, or accepts them again."""

    def close(self) -> None:
        """Ends what is open and frees what was made; may be called twice."""
