"""Why a TLS connection could not be made, from the words of gRPC or OpenSSL; and whose it was. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TlsReason:
    """A reason in words.

    Args:
        why: completes "The server cannot be used: "; `hint`: what to do.
    """

    why: str
    hint: str


EXPIRED = TlsReason(
    "its certificate has expired", "Whoever runs the server must renew it; or this device's clock is wrong."
)
NOT_YET = TlsReason("its certificate is not valid yet", "Check this device's clock.")
OTHER_NAME = TlsReason(
    "its certificate is for another name",
    "Use the name or address that the certificate is for, or have a certificate made for this one.",
)
UNKNOWN_AUTHORITY = TlsReason(
    "nobody whom this device trusts vouches for its certificate",
    "Name the certificate of the authority that does with --tls-ca FILE.",
)
NO_TLS = TlsReason(
    "what listens there does not speak TLS", "Leave --tls out, or use the port on which the server speaks TLS."
)
CLOSED = TlsReason(
    "it closes the connection before TLS begins",
    "It may have no room for another connection, or not speak TLS at this port.",
)
ONLY_TLS = TlsReason(
    "it speaks TLS only", "Connect with --tls, or with --tls-ca FILE if the server has an authority of its own."
)
WANTS_CERTIFICATE = TlsReason(
    "it wants a certificate of this device",
    "Ask whoever runs the server for one, and name it with --tls-cert FILE --tls-key FILE.",
)
OWN_EXPIRED = TlsReason("this device's certificate has expired", "Ask whoever runs the server for a new one.")
OWN_REFUSED = TlsReason(
    "it does not accept this device's certificate",
    "Ask whoever runs the server for one of an authority that it knows (its --tls-client-ca).",
)
NONE_BEHIND = TlsReason(
    "the proxy there reaches no server behind it", "Whoever runs it must look after these servers, and its settings."
)

_SIGNS = (
    # Envoy's words come first: what they go on with is about a connection of its own.
    ("no healthy upstream", NONE_BEHIND),
    ("upstream connect error", NONE_BEHIND),
    ("certificate has expired", EXPIRED),
    ("not yet valid", NOT_YET),
    ("Hostname", OTHER_NAME),
    ("IP address mismatch", OTHER_NAME),
    ("WRONG_VERSION_NUMBER", NO_TLS),
    ("CERTIFICATE_VERIFY_FAILED", UNKNOWN_AUTHORITY),
    ("issuer certificate", UNKNOWN_AUTHORITY),
    ("self-signed certificate", UNKNOWN_AUTHORITY),
    ("self signed certificate", UNKNOWN_AUTHORITY),
)


def tls_reason(words: str) -> TlsReason | None:
    """What the words of a failure mean; None: nothing about TLS is in them."""
    return next((reason for sign, reason in _SIGNS if sign in words), None)
