"""What the words of gRPC and OpenSSL mean for a user."""

from __future__ import annotations

import pytest
from moa_shared.protocol.tls_reasons import (
    EXPIRED,
    NO_TLS,
    NONE_BEHIND,
    NOT_YET,
    OTHER_NAME,
    UNKNOWN_AUTHORITY,
    tls_reason,
)

HANDSHAKE = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", EXPIRED),
        (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK", NOT_YET),
        (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK", UNKNOWN_AUTHORITY),
        (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: something new: OK", UNKNOWN_AUTHORITY),
        (f"{HANDSHAKE}WRONG_VERSION_NUMBER: Invalid certificate verification context: OK", NO_TLS),
        (
            "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
            OTHER_NAME,
        ),
        ("IP address mismatch, certificate is not valid for '127.0.0.1'", OTHER_NAME),
        ("self-signed certificate in certificate chain", UNKNOWN_AUTHORITY),
        ("failed to connect to all addresses; last error: UNAVAILABLE: Socket closed", None),
        ("no healthy upstream", NONE_BEHIND),
        (
            "upstream connect error or disconnect/reset before headers. retried and the latest reset reason: remote "
            "connection failure, transport failure reason: TLS_error:|268435581:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED:TLS_error_end",
            NONE_BEHIND,
        ),
        ("", None),
    ],
)
def test_the_reason(words: str, reason: object) -> None:
    assert tls_reason(words) is reason
