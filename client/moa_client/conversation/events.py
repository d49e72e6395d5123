"""What happens in a conversation: events of answers, of the link and of the conversation itself. Pure.

What a reader sees of an answer is committed text followed by provisional text; committed text never changes.
An engine makes events of tokens; `AnswerDecoder` adds their text, and `AnswerText.apply` says what each does to it:
`text` is appended to the committed text, `added` to the provisional text.
"""

from __future__ import annotations  # the codec of surfaces reads fields by the names of their types

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from moa_shared.errors import MoaError
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import TokenChances

from moa_client.conversation.options import OPEN, AnswerOptions


class Provenance(Enum):
    """Where a committed token came from. No two names begin with the same letter, which the history keeps."""

    PROMPT = auto()  # the user's turn and the template around it
    DRAFT = auto()  # drafted here, confirmed by the target
    SERVER = auto()  # drafted by the server, confirmed by the target
    TARGET = auto()  # chosen by the target beyond all drafts
    ALONE = auto()  # standalone text, kept unverified at the user's request

    @property
    def letter(self) -> str:
        return self.name[0]


# C: of drafts of earlier versions that repeated earlier text.
BY_LETTER = {each.letter: each for each in Provenance} | {"C": Provenance.DRAFT}


# A stretch of committed text: its characters, its writer's letter (empty: not known), and of one token the chance that
# the target chooses it after the text before it, if that is known.
TextRun = tuple[int, str] | tuple[int, str, float]


def runs_of(
    lengths: Sequence[int], writers: Sequence[Provenance] = (), chances: Sequence[TokenChances] = ()
) -> tuple[TextRun, ...]:
    """The runs of some tokens' text; none where neither writers nor chances are known.

    `lengths`: of the text that comes with each token; `writers`, `chances`: of each token, or empty.
    """
    letters = [each.letter for each in writers] or [""] * len(lengths)
    if chances:
        known = (round(math.exp(each.chosen), 4) for each in chances)
        return joined(zip(lengths, letters, known, strict=True))
    return joined(zip(lengths, letters, strict=True)) if writers else ()


def fitted(runs: tuple[TextRun, ...], characters: int) -> tuple[TextRun, ...]:
    """The runs of a text of so many characters: what is beyond them is the last token's."""
    if not runs:
        return joined([(characters, "")])
    *others, last = runs
    length = characters - sum(run[0] for run in others)
    return fitted(tuple(others), characters) if length <= 0 and others else (*others, (length, *last[1:]))


def joined(runs: Iterable[TextRun]) -> tuple[TextRun, ...]:
    """The same text in as few runs as can be."""
    whole: list[TextRun] = []
    for run in runs:
        if whole and len(run) == 2 and whole[-1][1:] == run[1:]:
            whole[-1] = (whole[-1][0] + run[0], run[1])
        elif run[0]:
            whole.append(run)
    return tuple(whole)


class LinkState(Enum):
    GOOD = "good"
    SLOW = "slow"  # answers come, but a round trip takes several steps of the server
    OFFLINE = "offline"  # the timer ran out, the stream broke, or the user wants it
    BACK = "back"  # reconnected; standalone text is being verified
    WAITING = "waiting"  # the server has said when it continues: this client has used up what it may take in a minute


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that the target has chosen, or that the reader keeps of this device's, after all committed before.

    Args:
        confirmed: how many of them, from the first one on, were shown as provisional in the same place.
        text: what they add to the committed text; if confirmed, the provisional text begins with it.
        chances: of each token, where the question wants them and the server has told them; else none.
        lengths: with them, how many characters of `text` came with each token; what is only a part of a character, or
            may become a stop string, comes with a later one.
        writers: of each token; empty: not known. `runs`: of `text`.
    """

    tokens: tuple[int, ...]
    confirmed: int = 0
    text: str = ""
    chances: tuple[TokenChances, ...] = ()
    lengths: tuple[int, ...] = ()
    writers: tuple[Provenance, ...] = ()
    runs: tuple[TextRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Provisional:
    """Standalone text of the device, after everything shown so far.

    Args:
        chances: of each token, that it is the target's if all before it are.
        added: what they add to the provisional text.
        likely: all text since the newest decided token is likely to be the target's.
    """

    tokens: tuple[int, ...]
    chances: tuple[float, ...] = ()
    added: str = ""
    likely: bool = True


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The device has more text, too unlikely to be shown before the server is back or the user wants it.

    `unread`: no server has read the question, so that the device has nothing to go by.
    """

    unread: bool = False


@dataclass(frozen=True, slots=True)
class Corrected:
    """All provisional text still shown, so many tokens, is withdrawn: the target continues differently."""

    dropped: int


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The state of the link has changed.

    `reason`: for a person, if there is one; `wait_seconds`: until the server is asked again, in the state WAITING.
    """

    state: LinkState
    reason: str = ""
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over.

    Args:
        provisional: it ended without the server and will be verified at the next contact.
        text: the rest of the committed text; `added`: of the provisional text, if it is provisional.
        calls: of tools, with which it ends; a `CallWanted` follows for each, then `Asked` with their results, or
            `CallsLeft`.
    """

    finish: Finish
    provisional: bool = False
    text: str = ""
    added: str = ""
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Earlier:
    """Something has been decided about the oldest answer that ended without the server; `Settled` follows."""

    event: Committed | Corrected


class AnswerOutcome(Enum):
    """What has become of an answer that ended without the server."""

    CONFIRMED = "confirmed"  # it is what was shown
    COMPLETED = "completed"  # it begins with what was shown, and goes on
    CORRECTED = "corrected"  # provisional text was withdrawn


@dataclass(frozen=True, slots=True)
class Settled:
    """An earlier answer, which ended without the server, has been verified.

    Args:
        tokens: what the server has decided of it; replaces the provisional tokens.
        written: how many of its tokens were shown as provisional at any time; `kept`: of these, how many remain.
        text: the rest of the committed text.
    """

    tokens: tuple[int, ...]
    outcome: AnswerOutcome
    finish: Finish
    written: int = 0
    kept: int = 0
    text: str = ""

    @property
    def changed(self) -> bool:
        return self.outcome is not AnswerOutcome.CONFIRMED


@dataclass(frozen=True, slots=True)
class Refused:
    """An earlier answer, which ended without the server, is refused by it, which concerns no later ones."""

    error: MoaError


@dataclass(frozen=True, slots=True)
class ExecutionChanged:
    """The server that continues the conversation computes differently: committed text stays, what follows may differ.

    `level`: of execution, such as int8; `exact`: the text does not depend on what is verified together;
    `fingerprint`: of the model and of how it is computed with now, for programs.
    """

    level: str
    exact: bool
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class ServerChanged:
    """Another server answers: at the same address, or at another one of those in use.

    `what`: "address": the conversation continues at another address; "drafter": it continues, without drafts from this
    device; "model": it waits for its model. `message`: for a person, one sentence.
    """

    what: Literal["address", "drafter", "model"]
    message: str


@dataclass(frozen=True, slots=True)
class DrafterChanged:
    """Another drafter drafts from the next question on; `standalone`: the one that writes without a server."""

    name: str
    reason: str
    standalone: str = ""


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """The model that answers from the next question on, by its name in lists.

    `models`: all that may, aliases, and servers that do not answer, with words about each; none: nobody has asked.
    """

    model: str
    models: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer begins. `options`: how it is chosen; a conversation leaves nothing of them open."""

    question: str
    options: AnswerOptions = OPEN


@dataclass(frozen=True, slots=True)
class Continued:
    """The newest answer, which had ended, goes on. `options`: as if it had been asked with them."""

    options: AnswerOptions


class Permission(Enum):
    ONCE = "once"
    ALWAYS = "always"  # and so may all calls of this tool in this conversation
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class CallWanted:
    """The newest answer calls a tool; `CallDecided` and `CallAnswered` follow.

    `call` names it; `arguments`: a JSON object; `server`: that has the tool, if one has; `waits`: for a surface to say
    whether it may be run.
    """

    call: str
    tool: str
    arguments: str
    server: str
    waits: bool = True


@dataclass(frozen=True, slots=True)
class CallDecided:
    call: str
    permission: Permission


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """A call has an answer. `content`: what the model is told; `is_error`: the tool has failed, or was not run."""

    call: str
    content: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class CallsLeft:
    """Calls of the newest answer stay without an answer, unless it is continued: then they are wanted again.

    `reason`: for a person, one sentence; empty: the user stopped them.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolsChanged:
    """Something has happened to the programs that have tools. `message`: for a person, one sentence."""

    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here with what is committed of it, of which `text` is the rest; no `Ended` follows.

    About no answer: a request was refused, or something has failed between answers; the conversation continues.
    `taken_back`: the question got no answer and is not part of the conversation; what was wished for is not done.
    """

    error: MoaError
    taken_back: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class NotKept:
    """From here on nothing of the conversation is kept in the history; `error` says why."""

    error: MoaError


@dataclass(frozen=True, slots=True)
class Rewound:
    """Only the first `answers` answers remain in the conversation; 0: it begins again."""

    answers: int


@dataclass(frozen=True, slots=True)
class Titled:
    title: str


Notice = ExecutionChanged | ServerChanged | DrafterChanged | ToolsChanged  # concerns the conversation, not one answer
AnswerEvent = Committed | Provisional | HeldBack | Corrected | Ended | Settled | Refused
Event = AnswerEvent | Earlier | LinkChanged | Notice  # of an engine
CallEvent = CallWanted | CallDecided | CallAnswered | CallsLeft
MadeEvent = ModelsChanged | Asked | Continued | Failed | NotKept | Rewound | Titled  # by what holds the engine
SurfaceEvent = AnswerEvent | CallEvent | LinkChanged | Notice | MadeEvent
