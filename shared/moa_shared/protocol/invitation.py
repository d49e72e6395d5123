"""An invitation: one line that says where a server is, whom to trust for it, and with which key. Pure.

`moa1_` and, in base64url, a hash of the rest, then address and key with a byte of length each, then the authority's
certificate in DER. Invariant: a line that is cut, or has a letter changed, is never taken for an invitation.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field

from moa_shared.errors import ConfigError

PREFIX = "moa1_"
MOST_CHARACTERS = 8192  # one with an authority of our own has 700
HASH_BYTES = 8
_ANY_PREFIX = re.compile(r"moa\d+_")
_AGAIN = "Paste the whole line that `moa-server setup` or `moa-server invite` has printed."


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a device needs to talk to a server."""

    address: str  # HOST:PORT
    key: str = field(repr=False)  # the API key
    # Certificate in DER of who vouches for the server; empty: this system's authorities do.
    authority: bytes = field(repr=False, default=b"")

    def line(self) -> str:
        parts = []
        for what, text in (("address", self.address), ("key", self.key)):
            data = text.encode()
            if len(data) > 255:
                message = f"The {what} has {len(data)} bytes, an invitation holds 255."
                raise ConfigError(message, hint="Use a shorter one.")
            parts.append(bytes([len(data)]) + data)
        content = b"".join(parts) + self.authority
        coded = base64.urlsafe_b64encode(_hash(content) + content).rstrip(b"=")
        return PREFIX + coded.decode()


def read_invitation(text: str) -> Invitation:
    """The invitation in a line; where a terminal has broken it into several, they are put together.

    ConfigError: it is none, or not whole.
    """
    line = "".join(text.split())
    if not line:
        raise ConfigError("There is no invitation.", hint=_AGAIN)
    if not line.startswith(PREFIX):
        if _ANY_PREFIX.match(line):
            raise ConfigError("This invitation is of another version of moa.", hint="Install the server's version.")
        raise ConfigError(f"An invitation begins with {PREFIX}, this text does not.", hint=_AGAIN)
    coded = line.removeprefix(PREFIX)
    try:
        if len(line) > MOST_CHARACTERS:
            raise ValueError
        data = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        found, content = data[:HASH_BYTES], data[HASH_BYTES:]
        if found != _hash(content):
            raise ValueError
        address, rest = _cut(content)
        key, authority = _cut(rest)
        invitation = Invitation(address, key, authority)
        if invitation.line() != line:  # the last letter has bits that mean nothing
            raise ValueError
    except (ValueError, binascii.Error):
        raise ConfigError("The invitation is not whole: letters are missing or changed.", hint=_AGAIN) from None
    return invitation


def _cut(content: bytes) -> tuple[str, bytes]:
    """The first text, and what comes after it."""
    if not content or len(content) <= content[0]:
        raise ValueError
    stop = 1 + content[0]
    return content[1:stop].decode(), content[stop:]


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:HASH_BYTES]
