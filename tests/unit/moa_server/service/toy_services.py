"""The services of a server whose inference thread never starts: frames change sessions, and no forward runs."""

from types import SimpleNamespace
from typing import cast

from moa.v1 import moa_pb2 as pb
from moa_server.engine.stepper import Stepper
from moa_server.service.host import Host
from moa_server.service.services import Served
from moa_server.settings import ServerSettings

IDENTITY = pb.Identity(
    target_id="toy",
    target_fingerprint=b"t" * 32,
    tokenizer_hash=b"k" * 32,
    drafter_fingerprint=b"d" * 32,
    execution=b"e" * 32,
)


class ToyStepper:
    """A target without memory rows, whose caches take one byte a token."""

    sources = ()
    target = SimpleNamespace(page_tokens=0, kv_bytes=lambda: 10_000)

    def find_source(self, fingerprint: bytes) -> None:
        return None

    def new_tensors(self) -> SimpleNamespace:
        cache = SimpleNamespace(most_nbytes=lambda rows: rows)
        return SimpleNamespace(cache=cache, planes={}, nbytes=0, release=lambda: None)


def toy_host() -> Host:
    served = Served(
        identity=IDENTITY,
        execution=pb.Execution(level="toy"),
        vocab_size=50,
        context_tokens=100,
        end_of_text=frozenset(),
        decode=str,
        drafters=(pb.Drafter(name="toy", fingerprint=IDENTITY.drafter_fingerprint),),
    )
    return Host.assemble(served, cast(Stepper, ToyStepper()), ServerSettings())
