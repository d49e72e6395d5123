"""When a certificate ends, read without a library of certificates and compared with one."""

from __future__ import annotations

import pytest
from cryptography import x509
from moa_client.link.unreachable import certificate_end

from tests.support.certificates import Authority


@pytest.mark.parametrize("days", [-3.0, 20.0, 20_000.0])  # beyond 2049 dates are written in another way
def test_the_end_is_that_of_the_certificate(days: float) -> None:
    pem = Authority().issue(days=days).certificate
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate_end(f"words before\n{pem.decode()}") == certificate.not_valid_after_utc.timestamp()


def test_what_is_no_certificate_has_no_end() -> None:
    pem = Authority().issue().certificate.decode()
    assert certificate_end("") is None
    assert certificate_end(pem[:200]) is None
    assert certificate_end(pem.replace("MII", "AAA", 1)) is None
