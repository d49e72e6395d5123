"""Who belongs to a fleet, as an operator writes it: addresses, or a name in DNS that has them all. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from moa_shared.programs.addresses import host_of, is_host_port

DNS = "dns:"


@dataclass(frozen=True, slots=True)
class Peers:
    """The replicas of a fleet, the one that is told among them or not."""

    addresses: tuple[str, ...] = ()
    name: str = ""

    def at(self, found: Iterable[str]) -> tuple[str, ...]:
        """HOST:PORT of each, where the name has these addresses."""
        port = self.name.rpartition(":")[2]
        return tuple(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in found)

    @property
    def host(self) -> str:
        return host_of(self.name)


def parse_peers(text: str) -> Peers:
    """Reads HOST:PORT,HOST:PORT,... or dns:NAME:PORT; empty: no one."""
    named = [each.strip() for each in text.split(",")] if text.strip() else []
    if any(each.startswith(DNS) for each in named):
        if len(named) > 1:
            raise ValueError("dns:NAME:PORT stands alone: the name has all addresses")
        name = named[0].removeprefix(DNS)
        if not is_host_port(name):
            raise ValueError(f"{named[0]!r} is not dns:NAME:PORT")
        return Peers(name=name)
    if wrong := [each for each in named if not is_host_port(each)]:
        raise ValueError(f"{wrong[0]!r} is not HOST:PORT")
    return Peers(tuple(dict.fromkeys(named)))


def parse_advertised(text: str) -> str:
    if text and not is_host_port(text):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return text
