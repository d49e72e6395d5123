"""Who a client's certificate says that it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moa_shared.text.plain_text import plain_line

from moa_server.access.caller import Caller, anonymous

NAME_FIELDS = ("x509_common_name", "x509_subject_alternative_name")  # of gRPC's auth context, in order


def certificate_name(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """The subject's common name, else its first alternative name; empty: there was no certificate.

    Args:
        auth_context: of a call, as gRPC has it; the certificate in it was checked in the handshake.
    """
    for field in NAME_FIELDS:
        for value in auth_context.get(field, ()):
            if name := plain_line(value.decode(errors="replace")):
                return name
    return ""


def caller_without_key(peer: str, certificate: str) -> Caller:
    """The caller of a server that wants no keys: its certificate's subject, or as far as the address says.

    Args:
        certificate: `certificate_name`.
    """
    return Caller(f"certificate {certificate}", peer, is_proven=True) if certificate else anonymous(peer)
