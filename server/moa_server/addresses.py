"""Where the server listens, whether it can, and what a user types to get there; which others are of its fleet."""

import contextlib
import socket
from typing import NamedTuple

from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import is_host_port, is_loopback

ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # of documentation: no machine has them
OPTIONS = "--host or --port"
METRICS_OPTIONS = "--metrics-host or --metrics-port"


def check_address(host: str, port: int, options: str = OPTIONS) -> None:
    """Checks that the address can be listened on, before anything is loaded. `options`: that say which one it is."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise cannot_listen(host, port, options) from None
    for family, kind, protocol, _, where in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
            return
    raise cannot_listen(host, port, options)


def cannot_listen(host: str, port: int, options: str = OPTIONS) -> ConfigError:
    return ConfigError(
        f"Cannot listen on {host_port(host, port)}: it is in use, or no address of this machine.",
        hint=f"Choose another {options} (0: any free port).",
    )


def connect_command(host: str, port: int, *, tls: bool = False, keys: bool = False) -> str:
    """What a user types to talk to this server. `tls`: it encrypts; `keys`: it wants API keys."""
    any_address = host in ("0.0.0.0", "::", "")
    protection = " --tls" if tls else "" if is_loopback(host) else " --insecure"
    address = host_port(socket.gethostname() if any_address else host, port)
    if keys:
        add = f"servers add NAME {address}{protection} --key-file FILE"
        return f"moa-client servers join NAME (with an invitation), or {add}"
    return f"moa-client chat --server {address}{protection}"


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_address(address: str) -> str:
    """This one, or for 127.0.0.1 or ::1 that of the way out, if any: other loopback addresses are chosen on purpose."""
    if address not in ("127.0.0.1", "::1"):
        return address
    for family, far in ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((far, 9))  # sends nothing
            return str(asked.getsockname()[0])
    return address


class Peers(NamedTuple):
    """The replicas of a fleet, the one that is told among them or not; `name`: NAME:PORT in DNS of all of them."""

    addresses: tuple[str, ...] = ()
    name: str = ""


def parse_peers(text: str) -> Peers:
    """Reads HOST:PORT,HOST:PORT,... or dns:NAME:PORT; empty: no one."""
    named = [each.strip() for each in text.split(",")] if text.strip() else []
    if any(each.startswith("dns:") for each in named):
        if len(named) > 1:
            raise ValueError("dns:NAME:PORT stands alone: the name has all addresses")
        if not is_host_port(name := named[0].removeprefix("dns:")):
            raise ValueError(f"{named[0]!r} is not dns:NAME:PORT")
        return Peers(name=name)
    if wrong := [each for each in named if not is_host_port(each)]:
        raise ValueError(f"{wrong[0]!r} is not HOST:PORT")
    return Peers(tuple(dict.fromkeys(named)))


def parse_advertised(text: str) -> str:
    if text and not is_host_port(text):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return text
