"""When a certificate in PEM ends, as far as that can be read without a library of certificates. Pure."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

END = "-----END CERTIFICATE-----"
SEQUENCE, UTC_TIME, VERSION = 0x30, 0x17, 0xA0  # tags of DER (X.690)


def certificate_end(pem: str) -> float | None:
    """Seconds since 1970 at which the first certificate of a text ends; None: none was found."""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE-----") : pem.index(END) + len(END)])
        _, certificate, _ = _element(der)
        _, rest, _ = _element(certificate)  # what is signed (RFC 5280, 4.1)
        fields: list[tuple[int, bytes]] = []
        while rest and len(fields) < 6:
            tag, content, rest = _element(rest)
            fields.append((tag, content))
        validity = fields[4 if fields[0][0] == VERSION else 3][1]
        _, _, after = _element(validity)
        tag, text, _ = _element(after)
        return (
            datetime.strptime(text.decode(), "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ")
            .replace(tzinfo=UTC)
            .timestamp()
        )
    except (ValueError, IndexError):
        return None


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first element, and what comes after it."""
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start])
    if start + length > len(data):
        raise ValueError("an element is cut off")
    return data[0], data[start : start + length], data[start + length :]
