"""Who makes a call: the name under which sessions, shared text and limits are held together. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moa_shared.text.plain_text import plain_line


class Right(StrEnum):
    CONVERSE = "converse"  # split inference
    GENERATE = "generate"  # answers of the server alone
    FETCH = "fetch"  # the device's half of the drafter


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """How much one caller may take; 0: no more is said than the server's own limits.

    Args:
        sessions: held at once, detached ones included.
        kv_bytes: keys and values of all its running answers.
        tokens_per_minute: read and written together.
    """

    sessions: int = 0
    kv_bytes: int = 0
    tokens_per_minute: int = 0
    requests_per_minute: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """One call's origin.

    Args:
        owner: whose sessions and shared text are meant: a key's, or without keys the address without its port.
        key: name of the API key; empty: none.
        is_proven: the owner has shown who it is; an address does not.
    """

    owner: str = ""
    peer: str = ""
    key: str = ""
    rights: frozenset[Right] = frozenset(Right)
    limits: CallerLimits = field(default_factory=CallerLimits)
    is_proven: bool = False

    def account(self, place: str) -> str:
        """Who pays for calls from a connection or an address: all strangers there together, or a proven owner alone."""
        return f"{place} {self.owner}" if self.is_proven else place


def anonymous(peer: str) -> Caller:
    """The caller of a server that wants no keys: as far as the address says."""
    return Caller(owner=peer.rpartition(":")[0], peer=peer)


NAME_FIELDS = ("x509_common_name", "x509_subject_alternative_name")  # of gRPC's auth context, in order


def certificate_name(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """The subject's common name, else its first alternative name; empty: there was no certificate."""
    for name_field in NAME_FIELDS:
        for value in auth_context.get(name_field, ()):
            if name := plain_line(value.decode(errors="replace")):
                return name
    return ""


def caller_without_key(peer: str, certificate: str) -> Caller:
    """The caller of a server that wants no keys: its certificate's subject, or as far as the address says.

    `certificate`: `certificate_name`.
    """
    return Caller(f"certificate {certificate}", peer, is_proven=True) if certificate else anonymous(peer)
