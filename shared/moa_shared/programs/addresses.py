"""Addresses as users and peers write them, and the proxy by which gRPC goes to one. Pure."""

import os
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

MOST_SUCCESSORS = 8  # that a server may name: a client asks each of them
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*[A-Za-z](?:[A-Za-z0-9_-]{{0,61}}[A-Za-z0-9])?")  # 127.1 or 0x7f.1 is none


def host_of(address: str) -> str:
    """The host of HOST:PORT, without the brackets of an IPv6 address."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as only its own programs reach it: localhost, 127.0.0.0/8 or ::1."""
    address = ip_of(host)  # another name may lead anywhere
    return host == "localhost" or (address is not None and address.is_loopback)


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is; None: it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_host_port(text: str) -> bool:
    """Whether this is HOST:PORT and nothing else, with brackets around an IPv6 address."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        return False
    in_brackets = host.startswith("[") and host.endswith("]")
    if (address := ip_of(host[1:-1] if in_brackets else host)) is not None:
        return (address.version == 6) is in_brackets
    return len(host) <= 253 and bool(_NAME.fullmatch(host))


def leads_here(host: str) -> bool:
    """Whether a host that somebody else names is, on the face of it, the machine that is told."""
    name = host.lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    if (address := ip_of(host)) is None:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def successors_among(named: Iterable[str]) -> tuple[str, ...]:
    """The first addresses that a peer names of servers that go on, each once; what is no HOST:PORT is left out."""
    return tuple(dict.fromkeys(each for each in named if is_host_port(each)))[:MOST_SUCCESSORS]


VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # that gRPC reads, the first one that is set
_HTTPS_PORT = 443  # gRPC's for a proxy without a port
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "127.0.0.0/8")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy."""

    host: str
    port: int
    variable: str  # that names it

    def __str__(self) -> str:
        return f"proxy {self.host}:{self.port}, which {self.variable} names"


def find_proxy(address: str, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """The proxy by which gRPC goes to HOST:PORT; None: there is none."""
    host = host_of(address).lower()
    variable = next((each for each in VARIABLES if environment.get(each)), None)
    if variable is None or is_loopback(host) or _is_excepted(host, environment):
        return None
    try:
        url = urlsplit(environment[variable])
        port = url.port or _HTTPS_PORT
    except ValueError:
        return None
    if url.scheme != "http" or not url.hostname:
        return None  # nor does gRPC know others
    return Proxy(url.hostname, port, variable)


def except_loopback(environment: MutableMapping[str, str] = os.environ) -> None:
    """Has everything in this process that reads these variables reach this machine's own programs without a proxy."""
    usual, of_grpc = environment.get("no_proxy") or environment.get("NO_PROXY", ""), environment.get("no_grpc_proxy")
    environment["no_proxy"] = environment["NO_PROXY"] = _with_loopback(usual)
    if of_grpc:
        environment["no_grpc_proxy"] = _with_loopback(of_grpc)


def _with_loopback(exceptions: str) -> str:
    return ",".join(filter(None, (exceptions, *_LOOPBACK)))


def _is_excepted(host: str, environment: Mapping[str, str]) -> bool:
    named = next(filter(None, map(environment.get, ("no_grpc_proxy", "no_proxy", "NO_PROXY"))), "")
    exceptions = [each.strip().lower().lstrip(".") for each in named.split(",")]
    return any(each == "*" or _covers(each, host) for each in exceptions if each)


def _covers(exception: str, host: str) -> bool:
    """Whether a name covers a host: the same or a domain above it, or a network with its address."""
    try:
        return ip_address(host) in ip_network(exception, strict=False)
    except ValueError:
        return host == exception or host.endswith(f".{exception}")
