"""How a link is protected: TLS, this device's certificate, and the key by which a server knows its user.

Invariant: a key travels only where nobody on the way can read it, over TLS or within this machine; a conversation too,
unless the user has said otherwise. What is wrong with TLS only a handshake by ourselves tells: gRPC would not say.
"""

import asyncio
import ssl
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import grpc
import grpc.aio
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.addresses import find_proxy, host_of, is_loopback
from moa_shared.programs.run_loop import turns
from moa_shared.protocol import handshake_checks as checks
from moa_shared.protocol.handshake_checks import TlsReason, tls_reason

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Security:
    """The protection of the link to one server. Its files are in PEM, and read when a connection is made."""

    tls: bool = False  # encrypt, and check the server's certificate
    authorities: Path | None = None  # who may vouch for the server; None: those of this system
    certificate: Path | None = None  # by which the server knows this device; None: none
    private_key: Path | None = None  # of the certificate
    key: str = field(default="", repr=False)  # sent with each call; empty: none
    insecure: bool = False  # conversations may leave this machine without encryption
    server_name: str = ""  # that the server's certificate must be for; empty: the host of its address
    new_key: str = ""  # what the user does for another key, in a sentence; empty: as the server says

    def metadata(self, more: Mapping[str, str] = NOTHING) -> tuple[tuple[str, str], ...] | None:
        """Of a call, with what is not empty of `more`."""
        key = {"authorization": f"Bearer {self.key}"} if self.key else {}  # gRPC wants small letters
        return tuple((name, value) for name, value in {**key, **more}.items() if value) or None

    def options(self, address: str) -> list[tuple[str, int | str]]:
        """For a channel of gRPC to this address: whether it may go by a proxy, and which name its certificate has."""
        options: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", int(self.proxy(address) is not None))]
        if self.server_name:
            options.append(("grpc.default_authority", self._named(address)))
            if self.tls:
                options.append(("grpc.ssl_target_name_override", self.server_name))
        return options

    def proxy(self, address: str) -> str | None:
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

    def context(self) -> ssl.SSLContext:
        """For Python's own TLS, with the files as they are now; what is wrong with them is said."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        if self.authorities is None:
            context.load_default_certs()
        else:
            _readable(self.authorities, "--tls-ca")
            try:
                context.load_verify_locations(cafile=self.authorities)
            except ssl.SSLError:
                why = f"{self.authorities} does not hold certificates in PEM."
                raise ConfigError(why, hint="Name another file with --tls-ca.") from None
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
        if self.authorities is not None or self.certificate is not None or self.private_key is not None:
            self.context()  # gRPC would say nothing of use about files
        files = (self.authorities, self.private_key, self.certificate)
        authorities, key, certificate = (each.read_bytes() if each is not None else None for each in files)
        return grpc.ssl_channel_credentials(authorities or _system_authorities(), key, certificate)

    def open_channel(
        self, address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, int | str]]
    ) -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)


PLAIN = Security()


@cache
def _system_authorities() -> bytes | None:
    """The certificates in PEM that this system trusts, which gRPC would not look for; None: it has none."""
    certificates = Security().context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode() or None


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def refuse() -> NoReturn:
        plain = f"Write it without: openssl pkey -in {key} -out FILE."
        raise ConfigError(f"The private key {key} has a passphrase.", hint=plain)

    _readable(certificate, "--tls-cert")
    _readable(key, "--tls-key")
    if stat.S_IMODE(key.stat().st_mode) & 0o077:
        raise ConfigError(f"Others can read the private key {key}.", hint=f"Protect it: chmod 600 {key}")
    try:
        context.load_cert_chain(certificate, key, refuse)
    except ssl.SSLError:
        why = f"{certificate} and {key} do not hold a certificate and its private key in PEM."
        raise ConfigError(why, hint="Name others with --tls-cert and --tls-key.") from None


def _readable(path: Path, option: str) -> None:
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}.", hint=f"Name another with {option}.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.", hint="") from None


FIRST_BYTES_SECONDS = 1.0  # a server of HTTP/2 speaks first, within a round trip
# What a server says that refuses this device's certificate, or the lack of one.
REFUSALS = ("ALERT_CERTIFICATE", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "CERTIFICATE_REQUIRED", "CERTIFICATE_EX")


async def shake_hands(address: str, security: Security) -> TlsReason | dict[str, Any]:
    """The server's certificate, as Python's ssl shows it, or why TLS fails: by one handshake, without a proxy.

    The caller sets how long to wait. Raises OSError if there is no connection.
    """
    host, context = host_of(address), security.context()
    refusal = checks.OWN_REFUSED if security.certificate is not None else checks.WANTS_CERTIFICATE
    try:
        reader, writer = await asyncio.open_connection(
            host, int(address.rpartition(":")[2]), ssl=context, server_hostname=security.server_name or host
        )
    except ssl.SSLCertVerificationError as error:
        words = error.verify_message
        return tls_reason(words) or TlsReason(f"its certificate is refused ({words.rstrip('.')})", "Have it renewed.")
    except (ssl.SSLEOFError, ConnectionResetError, ConnectionAbortedError):
        return checks.CLOSES_BEFORE_TLS
    except ssl.SSLError as error:
        return refusal if any(each in str(error.reason) for each in REFUSALS) else checks.NO_TLS
    try:  # in TLS 1.3 this end is done before the server has looked at this device's certificate
        async with turns(FIRST_BYTES_SECONDS):
            is_refused = await reader.read(1) == b""
    except (ssl.SSLError, ConnectionError, TimeoutError) as error:
        is_refused = not isinstance(error, TimeoutError)
    finally:
        writer.transport.abort()
    return refusal if is_refused else writer.get_extra_info("peercert") or {}
