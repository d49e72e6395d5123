"""gRPC's side of the certificate: credentials that follow it, and connections that came to nothing.

State: the configuration that the next handshake takes, and how many handshakes have begun. gRPC asks for it on threads
of its own before each handshake, so what they share with the event loop is one queue of one element and one counter.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import grpc
import structlog
from moa_shared.errors import ConfigError, MoaError
from moa_shared.programs.addresses import is_loopback

from moa_server.settings import ServerSettings
from moa_server.tls.certificates import DAY, CertificateFiles, ServerCertificate, read_certificate

log = structlog.get_logger()

SOON_DAYS = 14  # a renewal by a timer has failed several times by then


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


class WatchedCertificate:
    def __init__(self, files: CertificateFiles, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._files = files
        self._clock = clock
        self._stamps = files.stamps()  # before they are read: what is written meanwhile is read again
        self.newest = read_certificate(files, clock())
        self._new_trouble: MoaError | None = None  # not logged yet: one file may be there before the other
        self._reported = ""  # the trouble that the log tells of; empty: there is none
        self._warned_at: datetime | None = None

    def look(self, *, at_once: bool = False) -> ServerCertificate | None:
        """The new certificate if there is one. Cheap: to be called every second.

        `at_once`: reads the files whether they have changed or not, and logs what is wrong with them now.
        """
        self._warn_of_its_end()
        before, trouble = self._stamps, self._new_trouble
        self._stamps, self._new_trouble = self._files.stamps(), None
        if at_once or self._stamps != before:
            try:
                return self._read()
            except MoaError as error:
                trouble = error
            if not at_once:
                self._new_trouble = trouble
                return None
        if trouble is not None and (at_once or trouble.message != self._reported):
            self._reported = trouble.message
            words = "certificate not renewed; the former one stays in force"
            log.error(words, reason=trouble.message, hint=trouble.hint)
        return None

    def _read(self) -> ServerCertificate | None:
        found = read_certificate(self._files, self._clock())
        if found == self.newest:
            if self._reported:
                self._reported = ""
                self._log("certificate files are good again")
            return None
        self.newest, self._reported, self._warned_at = found, "", None
        self._log("certificate renewed")
        return found

    def _warn_of_its_end(self) -> None:
        now = self._clock()
        days = self.newest.days_left(now)
        if days >= SOON_DAYS or (self._warned_at is not None and now - self._warned_at < DAY):
            return
        self._warned_at = now
        words = "certificate ends soon" if days > 0 else "certificate has expired"
        log.warning(words, days_left=round(days, 1), hint="Renew it; the new files are read at once.")

    def announce(self) -> None:
        self._log("certificate in force")
        self._warn_of_its_end()

    def _log(self, event: str) -> None:
        newest = self.newest
        log.info(
            event,
            names=", ".join(newest.names),
            days_left=round(newest.days_left(self._clock()), 1),
            clients="with a certificate" if newest.client_authorities is not None else "any",
        )


PATIENCE_SECONDS = 15  # for a handshake (10 at most) and the first call after it
REPORT_SECONDS = 60.0


class TlsListener:
    def __init__(self, files: CertificateFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._watched = WatchedCertificate(files)
        self._clock = clock
        self._next: deque[grpc.ServerCertificateConfiguration] = deque(maxlen=1)
        self.handshakes = 0  # that have begun
        self._begun_before = deque([0], maxlen=PATIENCE_SECONDS)  # the same, in each of the last seconds
        self._reported = 0
        self._reported_at = -REPORT_SECONDS

    @property
    def certificate(self) -> ServerCertificate:
        return self._watched.newest

    def credentials(self) -> grpc.ServerCredentials:
        self._watched.announce()
        newest = self.certificate
        fetch: Any = self._fetch  # the stubs do not know that None means: as before
        return grpc.dynamic_ssl_server_credentials(
            _configuration(newest), fetch, require_client_authentication=newest.client_authorities is not None
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        self.handshakes += 1  # two threads may count one together, which only makes a report shorter
        try:
            return self._next.popleft()
        except IndexError:
            return None  # as before

    def look(self, connections: int) -> None:
        """To be called every second: takes a new certificate, and reports handshakes that led to nothing."""
        self._take(self._watched.look())
        lost = self._begun_before[0] - connections
        self._begun_before.append(self.handshakes)
        now = self._clock()
        if lost > self._reported and now - self._reported_at >= REPORT_SECONDS:
            log.warning(
                "connections without a call",
                count=lost - self._reported,
                hint="Clients without TLS, that do not accept the certificate, or whose own is not accepted; "
                "and probes that only connect.",
            )
            self._reported, self._reported_at = lost, now

    def reload(self) -> None:
        self._take(self._watched.look(at_once=True))

    def _take(self, fresh: ServerCertificate | None) -> None:
        if fresh is not None:
            self._next.append(_configuration(fresh))


def _configuration(certificate: ServerCertificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_authorities
    )
