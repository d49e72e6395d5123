"""The files of the server's certificate as the settings name them, and whether it may listen without any. Pure but for
asking the file system when files have changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import is_loopback

from moa_server.settings import ServerSettings

FileStamp = tuple[int, ...] | None  # None: there is no file


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the certificate is.

    Args:
        certificate: with those between it and its authority, in PEM; `key`: its private key.
        client_authorities: certificates of those who may vouch for clients; None: clients need no certificate.
    """

    certificate: Path
    key: Path
    client_authorities: Path | None = None

    def stamps(self) -> tuple[FileStamp, ...]:
        return tuple(_stamp(path) for path in (self.certificate, self.key, self.client_authorities) if path is not None)


def _stamp(path: Path) -> FileStamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino  # a change of rights is one of ctime


def files_of(settings: ServerSettings) -> CertificateFiles | None:
    """The files that the settings name; None: the server does not encrypt."""
    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is not None and key is not None:
        return CertificateFiles(certificate, key, settings.tls_client_ca)
    if certificate is not None:
        raise ConfigError("The certificate has no private key.", hint="Name it with --tls-key FILE.")
    if key is not None:
        raise ConfigError("The private key has no certificate.", hint="Name it with --tls-cert FILE.")
    if settings.tls_client_ca is not None:
        raise ConfigError(
            "Clients show certificates over TLS only, and this server has no certificate of its own.",
            hint="Name one with --tls-cert FILE --tls-key FILE.",
        )
    if not is_loopback(settings.host) and not settings.insecure:
        raise ConfigError(
            f"On {settings.host or 'all addresses'}, conversations would cross the network without encryption.",
            hint="Give the server a certificate (moa-server setup makes one; --tls-cert FILE --tls-key FILE name one); "
            "or have it listen on this machine only (--host 127.0.0.1), behind a proxy or a tunnel; or accept with "
            "--insecure that others on the way read and change them.",
        )
    return None
