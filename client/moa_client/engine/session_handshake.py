"""How one conversation introduces itself to servers, stream after stream.

State: the tokens by which servers know the session, the server of the newest stream, and what it can do.
"""

from __future__ import annotations

from dataclasses import dataclass

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import NoFormsError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.messages import Ask
from moa_shared.protocol.protobuf_messages import ask_to_proto, thin_memory_to_proto

from moa_client.conversation.conversation import Conversation
from moa_client.conversation.events import ServerChanged
from moa_client.device.loading import Device
from moa_client.drafting.device_drafting import DeviceDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.link.connection import StreamOpened


@dataclass(slots=True)
class SentState:
    """What the server has been sent on the newest stream.

    Args:
        question: id of the newest question; 0: none.
        provisional: how many provisional tokens of its answer the Open gave.
        stopped: id of the question whose answer it was asked to end; 0: none.
    """

    question: int = 0
    provisional: int = 0
    stopped: int = 0


class SessionHandshake:
    """The handshakes of one conversation, whichever server opens its streams."""

    def __init__(self, conversation: Conversation, settings: DraftingSettings) -> None:
        self._conversation = conversation
        self._settings = settings
        self._resume_tokens: dict[str, bytes] = {}  # by the address of the server that gave it: only it may know it
        self._address = ""  # of the newest stream's server
        self._label = ""  # the same for people
        self._holds_forms = True
        self.thins_memory = False  # the server of the newest stream sends the rows that it is asked for

    def open(self, address: str, device: Device, drafting: DeviceDrafting, ask: Ask | None) -> pb.Open:
        """The first frame to the server at this address. `ask`: the answer to begin or continue, if there is one."""
        tokens = self._conversation.tokens
        thin = drafting.memory.thin
        return pb.Open(
            protocol_version=PROTOCOL_VERSION,
            identity=device.identity,
            codecs=drafting.memory.offered,  # type: ignore[arg-type]
            resume_token=self._resume_tokens.get(address, b""),
            tokens=tokens,
            reused_state=device.drafting.state_width > 0,
            run_ahead=drafting.lets_server_run_ahead,
            memory_from=drafting.memory.first_missing(len(tokens)),
            ask=ask_to_proto(ask) if ask is not None else None,
            server_drafts=self._settings.server_drafts,
            thin_memory=thin_memory_to_proto(thin) if thin is not None else None,
        )

    def on_opened(self, stream: StreamOpened) -> ServerChanged | None:
        """A server has opened a stream; what to tell the reader if it is another one than before."""
        self._resume_tokens[stream.address] = stream.opened.resume_token
        self._holds_forms = stream.opened.limits.constraints
        self.thins_memory = stream.opened.thin_memory
        address, label = self._address, self._label
        self._address, self._label = stream.address, stream.label
        if address in ("", stream.address):
            return None
        return ServerChanged("address", f"{stream.label} answers now instead of {label}. {stream.reason}".rstrip())

    def check_form(self, settings: AnswerSettings) -> None:
        """Raises NoFormsError if an answer must have a form, which the server of the newest stream would ignore."""
        if settings.sampling.constraint is not None and not self._holds_forms:
            raise NoFormsError(f"{self._label} cannot hold answers to a form.")

    def forget_session(self) -> None:
        """Makes the next Open begin a new session."""
        self._resume_tokens.clear()
