"""Addresses as users and peers write them: their host, and whether they stay within this machine. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

MOST_SUCCESSORS = 8  # that a server may name: a client asks each of them
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*[A-Za-z](?:[A-Za-z0-9_-]{{0,61}}[A-Za-z0-9])?")  # 127.1 or 0x7f.1 is none


def host_of(address: str) -> str:
    """The host of HOST:PORT, without the brackets of an IPv6 address."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as only its own programs reach it: localhost, 127.0.0.0/8 or ::1."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name that may lead anywhere


def is_host_port(text: str) -> bool:
    """Whether this is HOST:PORT and nothing else, with brackets around an IPv6 address."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        return False
    in_brackets = host.startswith("[") and host.endswith("]")
    try:
        return (ip_address(host[1:-1] if in_brackets else host).version == 6) is in_brackets
    except ValueError:
        return len(host) <= 253 and bool(_NAME.fullmatch(host))


def leads_here(host: str) -> bool:
    """Whether a host that somebody else names is, on the face of it, the machine that is told."""
    name = host.lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def successors_among(named: Iterable[str]) -> tuple[str, ...]:
    """The first addresses that a peer names of servers that go on, each once; what is no HOST:PORT is left out."""
    return tuple(dict.fromkeys(each for each in named if is_host_port(each)))[:MOST_SUCCESSORS]
