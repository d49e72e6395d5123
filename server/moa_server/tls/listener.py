"""gRPC's side of the certificate: credentials that follow it, and connections that came to nothing.

State: the configuration that the next handshake takes, and how many handshakes have begun. gRPC asks for it on threads
of its own before each handshake, so what they share with the event loop is one queue of one element and one counter.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from moa_server.tls.certificate import ServerCertificate
from moa_server.tls.files import CertificateFiles
from moa_server.tls.watched_certificate import WatchedCertificate

log = structlog.get_logger()

PATIENCE_SECONDS = 15  # for a handshake (10 at most) and the first call after it
REPORT_SECONDS = 60.0


class TlsListener:
    """What a port with TLS needs.

    Args:
        clock: seconds, monotonic.

    Raises:
        MoaError: the certificate cannot be used.
    """

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
        """The one in force."""
        return self._watched.newest

    def credentials(self) -> grpc.ServerCredentials:
        """For the port; the log says whose certificate it is."""
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
        """To be called every second: takes a new certificate, and reports handshakes that led to nothing.

        Args:
            connections: that have made a call since the start.
        """
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
        """Reads the files now (SIGHUP)."""
        self._take(self._watched.reload())

    def _take(self, fresh: ServerCertificate | None) -> None:
        if fresh is not None:
            self._next.append(_configuration(fresh))


def _configuration(certificate: ServerCertificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_authorities
    )
