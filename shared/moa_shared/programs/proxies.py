"""The proxy that variables of the environment name: gRPC goes by it, and fetches do. Programs of one machine never do.

Pure, but for the environment that it is given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from moa_shared.programs.addresses import host_of, is_loopback

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # that gRPC reads, the first one that is set
_HTTPS_PORT = 443  # gRPC's for a proxy without a port
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "127.0.0.0/8")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Args:
        variable: that names it.
        login: "user:password"; empty: it wants none.
    """

    host: str
    port: int
    variable: str
    login: str = field(default="", repr=False)

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
    login = unquote(url.netloc.rpartition("@")[0])
    return Proxy(url.hostname, port, variable, login)


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
