"""How a link is protected: TLS, this device's certificate, and the key by which a server knows its user.

Invariant: a key travels only where nobody on the way can read it, over TLS or within this machine; a conversation too,
unless the user has said otherwise.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import grpc
import grpc.aio
from moa_shared.errors import AuthenticationError, ConfigError, MoaError, NotFoundError
from moa_shared.programs.addresses import Proxy, find_proxy, host_of, is_loopback

AUTHORIZATION = "authorization"  # of the metadata of each call; gRPC wants it in small letters


@dataclass(frozen=True, slots=True)
class Security:
    """The protection of the link to one server. Its files are read when a connection is made.

    Args:
        tls: encrypt, and check the server's certificate.
        authorities: a file of certificates in PEM of those who may vouch for the server; None: those of this system.
        certificate: a file in PEM by which the server knows this device; `private_key`: its key; None: none.
        key: sent with each call; empty: none.
        insecure: conversations may leave this machine without encryption.
        server_name: that the server's certificate must be for; empty: the host of its address.
        new_key: what the user does for another key, in a sentence; empty: as the server says.
    """

    tls: bool = False
    authorities: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    key: str = field(default="", repr=False)
    insecure: bool = False
    server_name: str = ""
    new_key: str = ""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        return ((AUTHORIZATION, f"Bearer {self.key}"),) if self.key else None

    def metadata_with(self, more: Mapping[str, str]) -> tuple[tuple[str, str], ...] | None:
        """Of a call that says more; what is empty is left out."""
        return (*(self.metadata or ()), *((name, value) for name, value in more.items() if value)) or None

    def advised(self, error: MoaError) -> MoaError:
        """An error of a call; that of a refused key says what to do on this device."""
        if self.new_key and isinstance(error, AuthenticationError):
            error.hint = self.new_key
        return error

    def options(self, address: str) -> list[tuple[str, int | str]]:
        """For a channel of gRPC to this address: under which name the server is called, and its certificate checked.

        And whether it may go by a proxy.
        """
        proxied = ("grpc.enable_http_proxy", int(self.proxy(address) is not None))
        if not self.server_name:
            return [proxied]
        override = [("grpc.ssl_target_name_override", self.server_name)] if self.tls else []
        return [*override, ("grpc.default_authority", self._named(address)), proxied]

    def proxy(self, address: str) -> Proxy | None:
        """The proxy on the way to this address; None: there is none. A number is as its server's name is."""
        return None if is_loopback(host_of(address)) else find_proxy(self._named(address))

    def _named(self, address: str) -> str:
        return f"{self.server_name}:{address.rpartition(':')[2]}" if self.server_name else address

    def check(self, address: str) -> None:
        """Raises ConfigError if the key, or a conversation, could be read on the way to this address."""
        if self.tls or is_loopback(host_of(address)):
            return
        if self.key:
            raise ConfigError(
                f"The API key for {address} would be sent without encryption.",
                hint="Add the server with --tls or --tls-ca FILE, or without a key.",
            )
        if not self.insecure:
            raise ConfigError(
                f"Conversations with {address} would cross the network without encryption.",
                hint="Use TLS if the server has it (--tls, or --tls-ca FILE); or accept with --insecure that others on "
                "the way read and change them. A listed server takes these options when it is added.",
            )

    def stamps(self) -> tuple[tuple[int, ...] | None, ...]:
        files = (self.authorities, self.certificate, self.private_key)
        return tuple(_stamp(each) for each in files if each is not None) if self.tls else ()

    def context(self) -> ssl.SSLContext:
        """For Python's own TLS, with the files as they are now."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        if self.authorities is None:
            context.load_default_certs()
        else:
            _load_authorities(context, self.authorities)
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError(
                "This device's certificate and its private key belong together.",
                hint="Name both: --tls-cert FILE --tls-key FILE.",
            )
        if self.certificate is not None and self.private_key is not None:
            _load_certificate(context, self.certificate, self.private_key)
        return context

    def credentials(self) -> grpc.ChannelCredentials | None:
        """For gRPC, with the files as they are now; None: without TLS."""
        if not self.tls:
            return None
        context = self.context()  # gRPC would say nothing of use
        authorities = _read(self.authorities) or _system_authorities(context)
        return grpc.ssl_channel_credentials(authorities, _read(self.private_key), _read(self.certificate))

    def open_channel(
        self, address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, int | str]]
    ) -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)


PLAIN = Security()


def _system_authorities(context: ssl.SSLContext) -> bytes | None:
    """The certificates in PEM that this system trusts, which gRPC would not look for; None: it has none."""
    certificates = context.get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode() or None


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise ConfigError(
            f"{path} does not hold certificates in PEM.", hint="Name another file with --tls-ca."
        ) from None
    except OSError as error:
        raise _unreadable(path, error, "--tls-ca") from None


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def refuse() -> NoReturn:
        raise ConfigError(
            f"The private key {key} has a passphrase.", hint=f"Write it without: openssl pkey -in {key} -out FILE."
        )

    for path, option in ((certificate, "--tls-cert"), (key, "--tls-key")):
        try:
            mode = path.stat().st_mode
            path.open("rb").close()
        except OSError as error:
            raise _unreadable(path, error, option) from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"Others can read the private key {key}.", hint=f"Protect it: chmod 600 {key}")
    try:
        context.load_cert_chain(certificate, key, refuse)
    except ssl.SSLError as error:
        why = (
            f"The private key {key} does not belong to the certificate {certificate}."
            if error.reason == "KEY_VALUES_MISMATCH"
            else f"{certificate} and {key} do not hold a certificate and its private key in PEM."
        )
        raise ConfigError(why, hint="Name others with --tls-cert and --tls-key.") from None


def _unreadable(path: Path, error: OSError, option: str) -> ConfigError | NotFoundError:
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"There is no file {path}.", hint=f"Name another with {option}.")
    return ConfigError(f"{path} cannot be read: {error.strerror or error}.", hint="")


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None else None


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino  # a change of rights is one of ctime


_MOST_HEAD = 16 << 10  # bytes of a proxy's answer


class TunnelError(OSError):
    """A proxy does not connect; the text says why."""


async def open_connection(
    address: str, security: Security, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to HOST:PORT; the caller sets how long to wait.

    Args:
        tls: None: without.

    Raises:
        TunnelError: the proxy refuses.
        OSError: there is no connection to the server or to the proxy, or TLS fails.
    """
    host, port = host_of(address), int(address.rpartition(":")[2])
    name = (security.server_name or host) if tls is not None else None
    if (proxy := security.proxy(address)) is None:
        return await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
    tunnel = await _open_tunnel(proxy, address)
    try:
        return await asyncio.open_connection(sock=tunnel, ssl=tls, server_hostname=name)
    except BaseException:
        tunnel.close()
        raise


async def _open_tunnel(proxy: Proxy, address: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    family, kind, _, _, where = (await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM))[0]
    tunnel = socket.socket(family, kind)
    try:
        tunnel.setblocking(False)
        await loop.sock_connect(tunnel, where)
        login = f"Proxy-Authorization: Basic {b64encode(proxy.login.encode()).decode()}\r\n" if proxy.login else ""
        await loop.sock_sendall(tunnel, f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{login}\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the server's
            byte = await loop.sock_recv(tunnel, 1)
            if not byte or len(head) > _MOST_HEAD:
                raise TunnelError(f"{proxy}, closes the connection")
            head += byte
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise TunnelError(f"{proxy}, answers {status[0].decode('latin-1') if status else 'in no HTTP'}")
    except BaseException:
        tunnel.close()
        raise
    return tunnel
