"""What protects a server: encryption, and keys. The judgements are pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.checks import Check

from moa_server.access.api_key import KeyBook, keys_in
from moa_server.access.authentication import VARIABLE as KEYS_VARIABLE
from moa_server.access.key_file import read_key_file
from moa_server.settings import ServerSettings
from moa_server.tls.certificate import ServerCertificate, read_certificate
from moa_server.tls.files import files_of
from moa_server.tls.watched_certificate import SOON_DAYS


def check_tls(settings: ServerSettings, now: datetime) -> Check:
    """The certificate, or the want of one.

    Raises:
        MoaError: it cannot be used, or the server would be exposed without encryption.
    """
    files = files_of(settings)
    return judge_tls(read_certificate(files, now) if files is not None else None, settings.host, now)


def judge_tls(certificate: ServerCertificate | None, host: str, now: datetime) -> Check:
    """A certificate that can be used, and whose key belongs to it; None: the server does not encrypt."""
    if certificate is None:
        if is_loopback(host):
            return Check("TLS", "ok", "not used: nothing leaves this machine")
        hint = "Make a certificate: moa-server setup HOST."
        return Check("TLS", "warn", "not used: others on the way can read and change conversations", hint)
    days = certificate.days_left(now)
    message = f"{', '.join(certificate.names)}: valid for {days:.0f} more day{'s' * (round(days) != 1)}, its key fits"
    if certificate.client_authorities is not None:
        message += "; clients need certificates"
    if days < SOON_DAYS:
        return Check("TLS", "warn", message, "Renew it: moa-server setup --renew, or as it was made.")
    return Check("TLS", "ok", message)


def check_keys(settings: ServerSettings, environment: Mapping[str, str], now: datetime) -> Check:
    """The API keys, in the file and in the environment, or the want of any.

    Raises:
        MoaError: the file can be read by others, or they cannot be used.
    """
    text = environment.get(KEYS_VARIABLE, "").strip()
    if settings.keys_file is None and not text:
        return judge_keys(None, settings.host, now)
    book = read_key_file(settings.keys_file) if settings.keys_file is not None else KeyBook()
    return judge_keys(book.joined(keys_in(text, KEYS_VARIABLE)) if text else book, settings.host, now)


def judge_keys(book: KeyBook | None, host: str, now: datetime) -> Check:
    """Keys that can be used; None: everybody gets in."""
    if book is None:
        if is_loopback(host):
            return Check("keys", "ok", "not wanted: only this machine reaches the server")
        hint = "Make one: moa-server keys add NAME, and serve with --keys-file FILE."
        return Check("keys", "warn", "not wanted: whoever reaches the server may use it", hint)
    entries = book.entries.values()
    expired = [each.name for each in entries if each.has_expired(now)]
    valid = len(entries) - len(expired)
    message = f"{valid} that can be used"
    if expired:
        message += f"; expired: {', '.join(expired)}"
    if not valid:
        return Check("keys", "warn", message, "Nobody gets in. Make one: moa-server keys add NAME.")
    return Check("keys", "ok", message)
