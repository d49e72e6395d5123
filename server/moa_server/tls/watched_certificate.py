"""The certificate in force, replaced when its files have changed.

State: the newest good certificate, and which files were read last. Invariant: files that are half-written, missing or
do not belong together change nothing; that is logged once, and so is the end of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from moa_shared.errors import MoaError

from moa_server.tls.certificate import DAY, ServerCertificate, read_certificate
from moa_server.tls.files import CertificateFiles

log = structlog.get_logger()

SOON_DAYS = 14  # a renewal by a timer has failed several times by then


def utc_now() -> datetime:
    return datetime.now(UTC)


class WatchedCertificate:
    """A certificate and its files.

    Args:
        clock: the time, with time zone.

    Raises:
        MoaError: it cannot be used.
    """

    def __init__(self, files: CertificateFiles, clock: Callable[[], datetime] = utc_now) -> None:
        self._files = files
        self._clock = clock
        self._stamps = files.stamps()  # before they are read: what is written meanwhile is read again
        self.newest = read_certificate(files, clock())
        self._new_trouble: MoaError | None = None  # not logged yet: one file may be there before the other
        self._reported = ""  # the trouble that the log tells of; empty: there is none
        self._warned_at: datetime | None = None

    def look(self) -> ServerCertificate | None:
        """The new certificate if there is one. Cheap: to be called every second."""
        self._warn_of_its_end()
        stamps = self._files.stamps()
        if stamps == self._stamps:
            trouble, self._new_trouble = self._new_trouble, None
            if trouble is not None and trouble.message != self._reported:
                self._report(trouble)
            return None
        self._stamps, self._new_trouble = stamps, None
        try:
            return self._read()
        except MoaError as error:
            self._new_trouble = error
            return None

    def reload(self) -> ServerCertificate | None:
        """Reads the files now, and logs what comes of it."""
        self._stamps, self._new_trouble = self._files.stamps(), None
        try:
            return self._read()
        except MoaError as error:
            self._report(error)
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

    def _report(self, error: MoaError) -> None:
        self._reported = error.message
        log.error("certificate not renewed; the former one stays in force", reason=error.message, hint=error.hint)

    def _warn_of_its_end(self) -> None:
        now = self._clock()
        days = self.newest.days_left(now)
        if days >= SOON_DAYS or (self._warned_at is not None and now - self._warned_at < DAY):
            return
        self._warned_at = now
        words = "certificate ends soon" if days > 0 else "certificate has expired"
        log.warning(words, days_left=round(days, 1), hint="Renew it; the new files are read at once.")

    def announce(self) -> None:
        """Logs whose certificate it is, and for how long."""
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
