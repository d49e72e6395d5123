"""Two network namespaces and the TUN device in each, made and removed.

Each pair is named after its process and guarded by a locked file, so that what a killed run left can be told
from what is in use, even when a process number is reused. Invariant: the lock is held before the first namespace
exists.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from netsim.errors import NetsimError, PrivilegeError

LOCKS = Path("/run/netsim")
NAMESPACES = Path("/run/netns")  # where iproute2 keeps named ones
PREFIX = "netsim-"
DEVICE = "link0"
# A pair of addresses of the range set aside for benchmarks (RFC 2544): no real network has them.
CLIENT_ADDRESS, SERVER_ADDRESS = "198.18.0.1", "198.18.0.2"
LINK_TABLE = 100  # routing table of what goes over the link though it is addressed to loopback

_CLONE_NEWNET, _TUNSETIFF = 0x40000000, 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000  # plain IP packets, no header before them
_counter = itertools.count()


def require_root() -> None:
    """Raises PrivilegeError, which names the other backend."""
    if os.geteuid() != 0:
        raise PrivilegeError(
            "The tun backend needs root: it makes network namespaces.",
            hint="Run it as root, or use --backend proxy, which needs no privileges and is approximate.",
        )
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise PrivilegeError(
            "The tun backend needs /dev/net/tun, which does not exist here.",
            hint="In a container, pass the device in (--device /dev/net/tun --cap-add NET_ADMIN,SYS_ADMIN), or use "
            "--backend proxy.",
        )


class NamespacePair:
    """The client's and the server's namespaces; owns both, their devices and the lock."""

    def __init__(self, congestion: str, port: int) -> None:
        require_root()
        name = f"{PREFIX}{os.getpid()}-{next(_counter)}"
        self.client, self.server = f"{name}-client", f"{name}-server"
        self._lock_path = LOCKS / f"{name}.lock"
        self._fds: list[int] = []
        LOCKS.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self.client_fd = self._make(self.client, CLIENT_ADDRESS, SERVER_ADDRESS, congestion)
            self.server_fd = self._make(self.server, SERVER_ADDRESS, CLIENT_ADDRESS, congestion)
            # A command that connects to loopback's port must reach the server too. Without these rules the table of
            # local addresses would be asked first.
            _ip(
                f"rule add pref 10 to 127.0.0.1 ipproto tcp dport {port} lookup {LINK_TABLE}\n"
                "rule add pref 100 lookup local\n"
                "rule del pref 0 lookup local\n"
                f"route add 127.0.0.1 dev {DEVICE} src {CLIENT_ADDRESS} table {LINK_TABLE} congctl {congestion}\n",
                self.client,
            )
        except BaseException:
            self.close()
            raise

    def _make(self, name: str, own: str, other: str, congestion: str) -> int:
        _ip(f"netns add {name}\n")
        with inside(name):
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            self._fds.append(fd)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN_NO_PI))
            for setting in (
                "ipv6/conf/all/disable_ipv6",  # no router solicitations among the packets
                "ipv4/conf/all/route_localnet",  # loopback's address may come in over the link
                "ipv4/tcp_no_metrics_save",  # one connection's threshold must not shape the next
            ):
                with suppress(FileNotFoundError):  # a kernel without IPv6
                    Path("/proc/sys/net", setting).write_text("1")
        _ip(
            "link set lo up\n"
            f"addr add {own} peer {other} dev {DEVICE}\n"
            f"link set {DEVICE} mtu 1500 up\n"
            f"route replace {other} dev {DEVICE} congctl {congestion}\n",
            name,
        )
        return fd

    def close(self) -> None:
        """Removes everything; may be called twice."""
        while self._fds:
            os.close(self._fds.pop())
        for name in (self.client, self.server):
            if (NAMESPACES / name).exists():
                _ip(f"netns del {name}\n")
        if self._lock >= 0:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Moves the calling thread into the namespace for the block; what it opens stays there. Raises NetsimError."""
    with ExitStack() as stack:
        home = stack.enter_context(open("/proc/thread-self/ns/net"))
        try:
            there = stack.enter_context((NAMESPACES / name).open())
        except OSError as error:
            raise NetsimError(f"Namespace {name} cannot be entered: {error.strerror}.") from error
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(home.fileno())


def socket_inside(name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A socket that belongs to the namespace, whoever uses it."""
    with inside(name):
        return socket.socket(socket.AF_INET, kind)


def clean_leftovers() -> list[str]:
    """Removes the namespaces of runs that are gone; returns their names."""
    removed = []
    for path in sorted(NAMESPACES.glob(f"{PREFIX}*")) if NAMESPACES.exists() else []:
        lock_path = LOCKS / f"{path.name.rsplit('-', 1)[0]}.lock"
        if _held(lock_path):
            continue
        _ip(f"netns del {path.name}\n")
        removed.append(path.name)
    for lock_path in LOCKS.glob(f"{PREFIX}*.lock") if LOCKS.exists() else []:
        if not _held(lock_path):
            lock_path.unlink(missing_ok=True)
    return removed


def _held(lock_path: Path) -> bool:
    try:
        with lock_path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (PermissionError, BlockingIOError):  # another user's, who removes it, or in use
        return True
    return False


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET) != 0:
        raise NetsimError(f"The network namespace cannot be changed: {os.strerror(ctypes.get_errno())}.")


def _ip(batch: str, namespace: str | None = None) -> None:
    """Runs lines of iproute2; raises NetsimError with what it said."""
    command = ["ip", *(["-n", namespace] if namespace else []), "-batch", "-"]
    try:
        done = subprocess.run(command, input=batch, capture_output=True, text=True, check=False, timeout=20)
    except FileNotFoundError:
        raise NetsimError("The program `ip` is missing.", hint="Install iproute2, or use --backend proxy.") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        raise NetsimError(
            f"The namespaces cannot be set up: {said}", hint="`netsim clean` removes what killed runs left."
        )
