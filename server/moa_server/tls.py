"""The server's certificate: checked when it is read, read again when its files change, and made by `moa-server setup`.

State: the certificate in force, and the configuration that the next handshake takes. gRPC asks for that on threads of
its own, so what they share with the event loop is one queue of one element.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from moa_shared.errors import ConfigError, MoaError, NotFoundError
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.atomic import open_to_others

from moa_server.access.keys import file_stamp
from moa_server.settings import ServerSettings

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey
DAY = timedelta(days=1)
DNS_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the certificate is, with those between it and its authority, its private key, and the certificates of
    those who may vouch for clients; None: clients need no certificate.
    """

    certificate: Path
    key: Path
    client_authorities: Path | None = None

    def stamps(self) -> list[tuple[int, ...] | None]:
        return [file_stamp(path) for path in (self.certificate, self.key, self.client_authorities) if path is not None]


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate and its key, in PEM; `client_authorities` as of CertificateFiles."""

    chain: bytes
    key: bytes = field(repr=False)
    client_authorities: bytes | None
    names: tuple[str, ...]
    expires_at: datetime

    def days_left(self, now: datetime) -> float:
        return (self.expires_at - now) / DAY


def read_certificate(files: CertificateFiles, now: datetime) -> ServerCertificate:
    """What a server shows its clients, checked."""
    chain, key = read_file(files.certificate, "Check --tls-cert."), read_file(files.key, "Check --tls-key.")
    if open_to_others(files.key.stat()):
        raise ConfigError(f"Others can read the private key {files.key}.", hint=f"Protect it: chmod 600 {files.key}")
    leaf, _ = parse_pair(chain, key, files)
    _check_dates(leaf, files.certificate, now)
    authorities = None
    if files.client_authorities is not None:
        authorities = read_file(files.client_authorities, "Check --tls-client-ca.")
        found = parse_certificates(authorities, files.client_authorities)
        if all(each.not_valid_after_utc <= now for each in found):
            words = f"No authority in {files.client_authorities} is valid any longer: no client could connect."
            raise ConfigError(words, hint="Put the authority's new certificate there.")
    return ServerCertificate(chain, key, authorities, names_in(leaf), leaf.not_valid_after_utc)


def read_file(path: Path, hint: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}.", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.", hint=hint) from None


def parse_certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(f"{path} does not hold certificates in PEM, or not whole ones.", hint="") from None


def parse_pair(chain: bytes, key_pem: bytes, files: CertificateFiles) -> tuple[x509.Certificate, PrivateKey]:
    """The first certificate of a chain, and its key; raises ConfigError for a pair that no server can use."""
    leaf = parse_certificates(chain, files.certificate)[0]
    try:
        key = load_pem_private_key(key_pem, None)
    except TypeError:
        words = f"The private key {files.key} has a passphrase, which nobody could type when the server restarts."
        hint = f"Write it without one, for the server's user alone: openssl pkey -in {files.key} -out FILE."
        raise ConfigError(words, hint=hint) from None
    except Exception as error:  # noqa: BLE001 (the library's kinds differ by format: all say that this is no key)
        words = f"{files.key} does not hold a private key in PEM, or not a whole one ({type(error).__name__})."
        raise ConfigError(words, hint="") from None
    if not isinstance(key, PrivateKey) or (
        isinstance(key, EllipticCurvePrivateKey) and not isinstance(key.curve, SECP256R1 | SECP384R1)
    ):
        hint = "Have a certificate made for a key of the kind RSA, P-256 or P-384."
        raise ConfigError(f"gRPC cannot use the kind of the private key {files.key}.", hint=hint)
    if key.public_key() != leaf.public_key():
        words = f"The private key {files.key} does not belong to the certificate {files.certificate}."
        hint = "Name the key that the certificate was made for; the server's certificate comes first in its file."
        raise ConfigError(words, hint=hint)
    return leaf, key


def _check_dates(leaf: x509.Certificate, path: Path, now: datetime) -> None:
    if leaf.not_valid_after_utc <= now:
        when = f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M}"
        raise ConfigError(f"The certificate {path} has expired on {when} UTC.", hint="Renew it.")
    if leaf.not_valid_before_utc > now:
        when = f"{leaf.not_valid_before_utc:%Y-%m-%d %H:%M}"
        hint = "Check this machine's clock."
        raise ConfigError(f"The certificate {path} is valid only from {when} UTC.", hint=hint)


def names_in(leaf: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses of a certificate, in the order in which they were given."""
    try:
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return tuple(str(each.value) for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
    return tuple(str(each.value) for each in alternatives)


AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
SKEW = timedelta(hours=1)  # of the devices' clocks
USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def new_private_key() -> PrivateKey:
    return generate_private_key(SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """Not encrypted: the server reads it without anybody there."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_authority(host: str, key: PrivateKey, now: datetime) -> x509.Certificate:
    name = _name(f"moa authority of {host}")
    builder = _builder(name, name, key, now, AUTHORITY_DAYS, "key_cert_sign", "crl_sign")
    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(key, SHA256())


def make_server_certificate(
    authority: x509.Certificate, authority_key: PrivateKey, hosts: Sequence[str], key: PrivateKey, now: datetime
) -> x509.Certificate:
    """A certificate for a server that is reached by any of these names and IP addresses."""
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(_name(hosts[0]), authority.subject, key, now, SERVER_DAYS, "digital_signature")
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, now: datetime, days: int, *usages: str
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(**{each: each in usages for each in USAGES})
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(usage, critical=True)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    if DNS_NAME.fullmatch(host) and len(host) <= 253:
        return x509.DNSName(host)
    hint = "Name the server as devices reach it, without port: gpu.example or 192.0.2.7."
    raise ConfigError(f"{host!r} is no name of a host and no IP address.", hint=hint)


log = structlog.get_logger()

SOON_DAYS = 14  # a renewal by a timer has failed several times by then


def files_of(settings: ServerSettings) -> CertificateFiles | None:
    """The files that the settings name; None: the server does not encrypt."""
    if settings.tls_cert is not None and settings.tls_key is not None:
        return CertificateFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    if settings.tls_cert is not None:
        raise ConfigError("The certificate has no private key.", hint="Name it with --tls-key FILE.")
    if settings.tls_key is not None:
        raise ConfigError("The private key has no certificate.", hint="Name it with --tls-cert FILE.")
    if settings.tls_client_ca is not None:
        words = "Clients show certificates over TLS only, and this server has no certificate of its own."
        raise ConfigError(words, hint="Name one with --tls-cert FILE --tls-key FILE.")
    if not is_loopback(settings.host) and not settings.insecure:
        raise ConfigError(
            f"On {settings.host or 'all addresses'}, conversations would cross the network without encryption.",
            hint="Give the server a certificate (moa-server setup makes one; --tls-cert FILE --tls-key FILE name one); "
            "or have it listen on this machine only (--host 127.0.0.1), behind a proxy or a tunnel; or accept with "
            "--insecure that others on the way read and change them.",
        )
    return None


class TlsListener:
    """The certificate in force: read again when its files change, and shown from the next handshake on."""

    def __init__(self, files: CertificateFiles, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._files = files
        self._clock = clock
        self._stamps = files.stamps()  # before they are read: what is written meanwhile is read again
        self.certificate = read_certificate(files, clock())
        self._trouble: MoaError | None = None  # with the files as they are
        self._reported = ""  # the trouble that the log tells of; empty: there is none
        self._warned_at: datetime | None = None
        self._next: deque[grpc.ServerCertificateConfiguration] = deque(maxlen=1)

    def credentials(self) -> grpc.ServerCredentials:
        self._log("certificate in force")
        fetch: Any = self._fetch  # the stubs do not know that None means: as before
        wants_theirs = self.certificate.client_authorities is not None
        configuration = _configuration(self.certificate)
        return grpc.dynamic_ssl_server_credentials(configuration, fetch, require_client_authentication=wants_theirs)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            return self._next.popleft()
        except IndexError:
            return None  # as before

    def refresh(self, *, at_once: bool = False) -> None:
        """Takes a new certificate if there is one. Cheap: to be called every second.

        `at_once`: reads the files whether they have changed or not, and logs what is wrong with them now.
        """
        self._warn_of_its_end()
        before, self._stamps = self._stamps, self._files.stamps()
        if at_once or self._stamps != before:
            self._trouble = None
            try:
                self._take(read_certificate(self._files, self._clock()))
            except MoaError as error:
                self._trouble = error
                if not at_once:
                    return  # one file may be there before the other: the next look logs it
        if (trouble := self._trouble) is not None and (at_once or trouble.message != self._reported):
            self._reported = trouble.message
            words = "certificate not renewed; the former one stays in force"
            log.error(words, reason=trouble.message, hint=trouble.hint)

    def _take(self, found: ServerCertificate) -> None:
        if found != self.certificate:
            self.certificate, self._warned_at = found, None
            self._next.append(_configuration(found))
            self._log("certificate renewed")
        elif self._reported:
            self._log("certificate files are good again")
        self._reported = ""

    def _warn_of_its_end(self) -> None:
        now = self._clock()
        days = self.certificate.days_left(now)
        if days < SOON_DAYS and (self._warned_at is None or now - self._warned_at >= DAY):
            self._warned_at = now
            words = "certificate ends soon" if days > 0 else "certificate has expired"
            log.warning(words, days_left=round(days, 1), hint="Renew it; the new files are read at once.")

    def _log(self, event: str) -> None:
        newest = self.certificate
        clients = "with a certificate" if newest.client_authorities is not None else "any"
        days = round(newest.days_left(self._clock()), 1)
        log.info(event, names=", ".join(newest.names), days_left=days, clients=clients)


def _configuration(certificate: ServerCertificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_authorities
    )
