"""What a server serves, as clients are told, and what its calls work with: sessions, engine and the memory shared."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ConfigError, ModelSourceError, NoFormsError, OverloadedError
from moa_shared.models.files import GGUF_KEY, ModelFiles, Pooling
from moa_shared.protocol.messages import AnswerSettings, Ask
from moa_shared.protocol.prefix_hash import NAMED_TOKENS
from moa_shared.protocol.protobuf_messages import ask_from_proto
from moa_shared.sampling.settings import Constraint

from moa_server.access.limits import Caller, Rates
from moa_server.drafting.forward_cost import TORCH, RowShares
from moa_server.engine.engine import Engine
from moa_server.engine.inference_thread import InferenceThread
from moa_server.engine.live_session import Account, LiveSession, Observer
from moa_server.engine.registry import KVPool, SessionRegistry, SessionSize
from moa_server.engine.schedule import Schedule
from moa_server.engine.stepper import Stepper
from moa_server.session.session import Session, SessionLimits
from moa_server.settings import ServerSettings

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler
    from moa_shared.constraints.constrained_text import ConstrainedText

TOKEN_BYTES = 16  # of a session's token, so that it cannot be guessed
MOST_OF_ONE = 32  # that wait: a usual schema takes some milliseconds, the largest a few seconds
MOST_WAITING = 256  # of all callers: a form may have 256 KiB


@dataclass(frozen=True, slots=True)
class ModelPooling:
    kind: Pooling = Pooling.MEAN
    is_trained: bool = False  # its files say so: it was made for embeddings


UNKNOWN_POOLING = ModelPooling()
_MODES = {"pooling_mode_mean_tokens": Pooling.MEAN, "pooling_mode_lasttoken": Pooling.LAST}


def find_pooling(files: ModelFiles) -> ModelPooling:
    """How a model is pooled; the mean where its files do not say. ModelSourceError: they want another way."""
    if (named := files.config.get(GGUF_KEY)) is not None:
        return ModelPooling(Pooling(named), is_trained=True)
    path = files.folder / "1_Pooling/config.json"
    if not path.is_file():
        return UNKNOWN_POOLING
    try:
        modes = dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelSourceError(f"{path} cannot be read: {error}.", hint="Fetch the model again.") from None
    wanted = [name for name, is_on in modes.items() if name.startswith("pooling_mode") and is_on is True]
    if len(wanted) != 1 or wanted[0] not in _MODES:
        words = f"{path} pools by {', '.join(wanted) or 'nothing'}, which is not known here."
        raise ModelSourceError(words, hint=f"Known: {', '.join(_MODES)}.")
    return ModelPooling(_MODES[wanted[0]], is_trained=True)


class Forms:
    """The forms of one server's answers. `compiler`: None: this server cannot hold answers to a form."""

    def __init__(self, compiler: ConstraintCompiler | None) -> None:
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(1, "forms")
        self._waiting: Counter[str] = Counter()  # by owner; those that are compiled count too
        self._turns: dict[str, asyncio.Lock] = {}  # by owner: one form of each waits for the thread

    async def begin(self, constraint: Constraint, owner: str) -> ConstrainedText:
        """An answer under a constraint, before its first token. `owner`: whose answer it is."""
        if self._compiler is None:
            raise NoFormsError("This server cannot hold answers to a form.")
        if (known := self._compiler.known(constraint)) is not None:
            return known
        if self._waiting[owner] >= MOST_OF_ONE or self._waiting.total() >= MOST_WAITING:
            raise OverloadedError("Too many forms of answers wait to be compiled.")
        self._waiting[owner] += 1
        try:
            async with self._turns.setdefault(owner, asyncio.Lock()):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._thread, self._compiler.begin, constraint)
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner], self._turns[owner]


@dataclass(frozen=True, slots=True)
class Served:
    """The target as the service needs to know it.

    `step_ms`: of a plain step at the start; 0: not measured; `row_shares`: what further rows added to it;
    `constraints`: compiles the forms of answers; None: it has none.
    """

    identity: pb.Identity
    execution: pb.Execution
    vocab_size: int
    context_tokens: int
    end_of_text: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    drafters: tuple[pb.Drafter, ...] = ()
    step_ms: float = 0.0
    row_shares: RowShares = TORCH
    constraints: ConstraintCompiler | None = None
    pooling: ModelPooling = UNKNOWN_POOLING
    raw_text_only: bool = False

    def new_execution(self, before: bytes) -> pb.NewExecution | None:
        """The message for a client whose conversation began on another execution than this server's."""
        now, ends = self.identity.execution, sorted(self.end_of_text)
        if before == now:
            return None
        return pb.NewExecution(fingerprint=now, execution=self.execution, end_of_text=ends)


log = structlog.get_logger()


class Services:
    """What a call needs in order to converse. `thread`: where models run."""

    def __init__(
        self,
        served: Served,
        stepper: Stepper,
        settings: ServerSettings,
        rates: Rates,
        observer: Observer,
        thread: InferenceThread | None,
        clock: Callable[[], float],
    ) -> None:
        self.served = served
        self.settings = settings
        self.rates = rates
        self.observer = observer
        self.clock = clock
        self.forms = Forms(served.constraints)
        most = settings.max_sessions, settings.max_streams, settings.detached_seconds
        self.registry = SessionRegistry(*most, self._make_live_session, clock, self._on_closed)
        times, all_nodes = (served.row_shares, served.step_ms), not settings.choose_nodes
        schedule = Schedule[LiveSession](
            *times, settings.prefill_chunk, lambda live: live.caller.owner, verifies_all=all_nodes
        )
        page_tokens = 0 if settings.share_prefixes == "off" else stepper.target.page_tokens
        everyone = settings.share_prefixes == "all"
        self.engine = Engine(
            stepper, self.registry.close, thread, schedule, observer, page_tokens=page_tokens, share_all=everyone
        )
        kv_bytes = settings.kv_bytes or stepper.target.kv_bytes()
        self.pool = KVPool(kv_bytes, self.engine.release, self.engine.pages.index)
        self.frame_bytes = settings.most_frame_bytes(served.context_tokens)
        self.most_tokens = max(served.context_tokens, settings.draft_nodes)  # in one frame: a context, or a draft
        self.limits = pb.Limits(
            context_tokens=served.context_tokens,
            draft_nodes=settings.draft_nodes,
            frame_bytes=self.frame_bytes,
            sessions=settings.max_sessions,
            constraints=served.constraints is not None,
        )
        self._stepper = stepper
        self.size = SessionSize(stepper, settings.draft_nodes)
        steps = settings.draft_nodes, settings.prefill_chunk, settings.run_ahead_tokens
        self._limits = SessionLimits(served.context_tokens, served.vocab_size, *steps, stepper.target.checkpoint_tokens)

    # ------------------------------------------------------------ what clients are told

    @property
    def load(self) -> float:
        """How much of this server is taken, 0 to 1, for clients that choose among several servers.

        The largest of four shares that running answers have: of streams, of memory, of the time of a step with one
        more, and of the reading of prompts with one more.
        """
        running = [live for live in self.registry.live_sessions if not live.is_idle]
        answers, readers = len(running), sum(live.session.reads for live in running)
        cost = self.engine.schedule.cost
        others_ms = answers * cost.row_ms
        time_share = others_ms / (cost.plain_ms + others_ms) if others_ms else 0.0
        return min(1.0, max(answers / self.settings.max_streams, self.pool.taken, time_share, readers / (readers + 1)))

    def cached_tokens(self, caller: Caller, prefix_hashes: Sequence[int]) -> int:
        """How much of a text is kept that this caller need not have read.

        `prefix_hashes`: of the text after each 64th token; those beyond the context are not looked at.
        """
        return self.engine.pages.cached_tokens(caller, prefix_hashes[: self.served.context_tokens // NAMED_TOKENS])

    def conversations_that_fit(self, tokens: int) -> int:
        """How many conversations of so many tokens can have running answers, with the memory rows that take most.

        They share nothing: with a prefix in common there is room for more.
        """
        return self.pool.budget // self.size.largest(tokens)

    # ------------------------------------------------------------ what clients ask

    def read_ask(self, message: pb.Ask) -> Ask:
        ask = ask_from_proto(message)
        self.check_settings(ask.settings)
        return ask

    def check_settings(self, settings: AnswerSettings) -> None:
        if settings.ignore_end_of_text and not self.settings.allow_ignore_end_of_text:
            hint = "Ask without ignore_end_of_text, or start the server with --allow-ignore-end-of-text."
            raise ConfigError("This server ends answers at end-of-text.", hint=hint)
        size = self.served.vocab_size
        for token, _ in settings.sampling.logit_bias[-1:]:  # the largest
            if token >= size:
                words = f"logit_bias names token {token}, outside the vocabulary (0 to {size - 1})."
                raise ConfigError(words, hint="Use the server's tokenizer.")

    def let_in(self, live: LiveSession, caller: Caller) -> None:
        """Lets a session begin its answer, or continue it: before anything else of the question is done."""
        live.account.let_in(self.rates.meter(caller))
        live.turn.held = False

    def reserve(self, live: LiveSession) -> None:
        """Promises a session the memory that the requested answer may take, less what of its text is kept already."""
        self.engine.pages.adopt(live)
        cache, drafting = live.tensors.cache, live.drafting
        nbytes = self.size.most_nbytes(cache, drafting.widths, live.session.most_tokens, drafting.own_drafter)
        self.pool.reserve(live, nbytes, self.engine.pages.page_nbytes(live), cache.checkpoint_nbytes)

    # ------------------------------------------------------------ sessions

    def close_sessions(self) -> None:
        """Ends all sessions: their clients hold the text, and the log says what each has used."""
        for live in self.registry.live_sessions:
            self.registry.close(live)

    def _on_closed(self, live: LiveSession) -> None:
        live.account.end_answer()
        self.pool.forget(live)
        self.engine.thread.submit(live.tensors.release)
        log.info("session ended", session=live.number, **live.account.facts(live.caller, self.clock()))

    def _make_live_session(self) -> LiveSession:
        served, token = self.served, secrets.token_bytes(TOKEN_BYTES)
        session = Session(self._limits, end_of_text=served.end_of_text, decode=served.decode, run_ahead=False)
        return LiveSession(token, session, self._stepper.new_tensors(), account=Account(self.clock()))
