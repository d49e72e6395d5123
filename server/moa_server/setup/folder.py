"""The folder that `moa-server setup` makes: authority, certificate, keys and server.toml.

Invariants: it is there whole or not at all; only its owner may read what is in it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.atomic import write_private

from moa_server.settings import SETTINGS_NAME
from moa_server.setup.authority import Identity

HEAD = "# Written by `moa-server setup`. What else can be set: moa-server serve --help\n"
_AGAIN = "Name the folder with --folder, or make one: moa-server setup HOST."


@dataclass(frozen=True, slots=True)
class SetupFolder:
    """The paths in a server's folder.

    Args:
        path: absolute, as server.toml needs it.
        settings_name: of the file that `moa-server serve --config` reads.
    """

    path: Path
    settings_name: str = SETTINGS_NAME

    @classmethod
    def of(cls, config_file: Path) -> SetupFolder:
        """The folder of a configuration."""
        whole = config_file.expanduser().absolute()
        return cls(whole.parent, whole.name)

    @property
    def authority(self) -> Path:
        return self.path / "authority.pem"

    @property
    def authority_key(self) -> Path:
        return self.path / "authority.key.pem"

    @property
    def certificate(self) -> Path:
        return self.path / "server.pem"

    @property
    def key(self) -> Path:
        return self.path / "server.key.pem"

    @property
    def keys(self) -> Path:
        return self.path / "keys.toml"

    @property
    def settings(self) -> Path:
        return self.path / self.settings_name

    def settings_text(self, host: str, port: int, metrics_port: int) -> str:
        """The content of server.toml."""
        values: dict[str, str | int] = {
            "host": host,
            "port": port,
            "tls_cert": str(self.certificate),
            "tls_key": str(self.key),
            "keys_file": str(self.keys),
            "metrics_port": metrics_port,
        }
        return f"{HEAD}[server]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder that becomes `path` when the block ends; if it fails, nothing is left.

    Raises:
        ConfigError: there is something already, or it cannot be written.
    """
    try:
        if path.is_dir() and any(path.iterdir()):
            raise ConfigError(
                f"{path} holds a server's files already.",
                hint="Another device: moa-server invite NAME. A new certificate: moa-server setup --renew.",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{path.name}.part-", dir=path.parent))  # its owner's alone
        try:
            yield partial
            partial.replace(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def replace_private(path: Path, content: bytes) -> None:
    """Replaces a file that only its owner may read, whole.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        write_private(path, content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate of a file in PEM.

    Raises:
        NotFoundError: no such file.
        ConfigError: it holds none.
    """
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise ConfigError(f"{path} holds no certificate in PEM.", hint=_AGAIN) from None


def read_identity(certificate: Path, key: Path) -> Identity:
    """A certificate and its key, on the curve P-256 as `moa-server setup` makes them.

    Raises:
        NotFoundError: no such file.
        ConfigError: they cannot be read.
    """
    try:
        found = load_pem_private_key(_read(key), None)
    except (ValueError, TypeError):
        raise ConfigError(f"{key} holds no key in PEM without a password.", hint=_AGAIN) from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{key} was not made by moa-server setup.", hint=_AGAIN)
    return Identity(read_certificate(certificate), found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"There is no {path}.", hint=_AGAIN) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.", hint="") from None
