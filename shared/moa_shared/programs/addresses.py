"""Addresses as users and peers write them, the proxy by which gRPC goes to one, and invitations to a server. Pure.

An invitation is one line that says where a server is, whom to trust for it, and with which key: `moa1_` and, in
base64url, a hash of the rest, then address and key with a byte of length each, then the authority's certificate in DER.
Invariant: a line that is cut, or has a letter changed, is never taken for an invitation.
"""

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from moa_shared.errors import ConfigError

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
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        return False
    in_brackets = host.startswith("[") and host.endswith("]")
    if (address := ip_of(host[1:-1] if in_brackets else host)) is not None:
        return (address.version == 6) is in_brackets
    return len(host) <= 253 and bool(_NAME.fullmatch(host))


def leads_here(host: str) -> bool:
    """Whether a host that somebody else names is, on the face of it, the machine that is told."""
    if (address := ip_of(host)) is None:
        return f".{host.lower()}".endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def successors_among(named: Iterable[str]) -> tuple[str, ...]:
    """The first addresses that a peer names of servers that go on, each once; what is no HOST:PORT is left out."""
    return tuple(dict.fromkeys(each for each in named if is_host_port(each)))[:MOST_SUCCESSORS]


def find_proxy(address: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The proxy by which gRPC goes to HOST:PORT, in words; None: there is none."""
    host = host_of(address).lower()
    variable = next((each for each in ("grpc_proxy", "https_proxy", "http_proxy") if environment.get(each)), None)
    excepted = next(filter(None, map(environment.get, ("no_grpc_proxy", "no_proxy", "NO_PROXY"))), "")
    is_excepted = any(_covers(each.strip().lower(), host) for each in excepted.split(","))
    if variable is None or is_loopback(host) or is_excepted:
        return None
    try:
        url = urlsplit(environment[variable])
        port = url.port or 443  # gRPC's for a proxy without one
    except ValueError:
        return None
    is_known = url.scheme == "http" and url.hostname
    return f"proxy {url.hostname}:{port}, which {variable} names" if is_known else None


def _covers(exception: str, host: str) -> bool:
    """Whether a name covers a host: all, the same or a domain above it, or a network with its address."""
    try:
        return ip_address(host) in ip_network(exception, strict=False)
    except ValueError:
        name = exception.lstrip(".")
        return exception == "*" or (bool(name) and (host == name or host.endswith(f".{name}")))


def except_loopback(environment: MutableMapping[str, str] = os.environ) -> None:
    """Has everything in this process that reads these variables reach this machine's own programs without a proxy."""
    usual, of_grpc = environment.get("no_proxy") or environment.get("NO_PROXY", ""), environment.get("no_grpc_proxy")
    loopback = "localhost,127.0.0.1,::1,127.0.0.0/8"
    environment["no_proxy"] = environment["NO_PROXY"] = f"{usual},{loopback}".lstrip(",")
    if of_grpc:
        environment["no_grpc_proxy"] = f"{of_grpc},{loopback}"


PREFIX = "moa1_"
MOST_CHARACTERS = 8192  # one with an authority of our own has 700
HASH_BYTES = 8
_AGAIN = "Paste the whole line that `moa-server setup` or `moa-server invite` has printed."


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a device needs to talk to a server."""

    address: str  # HOST:PORT
    key: str = field(repr=False)  # the API key
    # Certificate in DER of who vouches for the server; empty: this system's authorities do.
    authority: bytes = field(repr=False, default=b"")

    def line(self) -> str:
        parts = []
        for what, data in (("address", self.address.encode()), ("key", self.key.encode())):
            if len(data) > 255:
                raise ConfigError(f"The {what} has {len(data)} bytes, an invitation holds 255.", hint="Shorten it.")
            parts.append(bytes([len(data)]) + data)
        content = b"".join(parts) + self.authority
        coded = base64.urlsafe_b64encode(_hash(content) + content).rstrip(b"=")
        return PREFIX + coded.decode()


def read_invitation(text: str) -> Invitation:
    """The invitation in a line; where a terminal has broken it into several, they are put together.

    ConfigError: it is none, or not whole.
    """
    line = "".join(text.split())
    if not line.startswith(PREFIX):
        if re.match(r"moa\d+_", line):
            raise ConfigError("This invitation is of another version of moa.", hint="Install the server's version.")
        raise ConfigError(f"An invitation begins with {PREFIX}, this text does not.", hint=_AGAIN)
    coded = line.removeprefix(PREFIX)
    try:
        if len(line) > MOST_CHARACTERS:
            raise ValueError
        data = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        found, content = data[:HASH_BYTES], data[HASH_BYTES:]
        if found != _hash(content):
            raise ValueError
        address, rest = _cut(content)
        key, authority = _cut(rest)
        invitation = Invitation(address, key, authority)
        if invitation.line() != line:  # the last letter has bits that mean nothing
            raise ValueError
    except (ValueError, binascii.Error):
        raise ConfigError("The invitation is not whole: letters are missing or changed.", hint=_AGAIN) from None
    return invitation


def _cut(content: bytes) -> tuple[str, bytes]:
    """The first text, and what comes after it."""
    if not content or len(content) <= content[0]:
        raise ValueError
    stop = 1 + content[0]
    return content[1:stop].decode(), content[stop:]


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:HASH_BYTES]
