"""What stands for models: a scripted target, drafters of it, and threads on which they take virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from moa.v1 import moa_pb2 as pb
from moa_client.device import loading
from moa_client.device.loading import Device, Drafting
from moa_client.drafting.drafter_thread import DrafterExecutor
from moa_server.engine.inference_thread import InferenceThread
from moa_server.engine.stepper import Outcome, Stepper, Work
from moa_server.service.services import Served
from moa_server.session.verification import StepPlan, Verification
from moa_shared.drafting.growing import Growth
from moa_shared.models.checkpoints import kept_checkpoints
from moa_shared.protocol.messages import AnswerSettings, Finish, FinishRule
from moa_shared.sampling.coupling import select
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree

VOCAB, CONTEXT = 11, 400
END_OF_TEXT = frozenset({VOCAB - 1})
IDENTITY = pb.Identity(target_id="toy", target_fingerprint=b"t", tokenizer_hash=b"k", execution=b"e")
FIRST_LOOP = 10  # texts of the seeds from here on soon repeat themselves
_LOGITS = np.random.default_rng(3).standard_normal((997, VOCAB), np.float32)
Result = TypeVar("Result")


def decode(tokens: Sequence[int], **_: object) -> str:
    return "".join(chr(97 + token) for token in tokens)


SERVED = Served(
    identity=IDENTITY, execution=pb.Execution(level="toy", exact=True), vocab_size=VOCAB, context_tokens=CONTEXT,
    end_of_text=END_OF_TEXT, decode=decode,
)  # fmt: skip


class Target:
    """What follows a text depends on all of it, and on how tokens are chosen; `script`: or on the position alone."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = script

    def next(self, tokens: Sequence[int], sampling: Sampling) -> int:
        if len(tokens) < len(self._script):
            return self._script[len(tokens)]
        if sampling.adjusts:
            return select(self.logits(tokens)[None], [len(tokens)], sampling, TextBefore(tokens, [()]))[0]
        value = 17 * sampling.seed + int(10 * sampling.temperature)
        if sampling.seed >= FIRST_LOOP:
            return (value + 3 * tokens[-1] ** 2 + 1) % (VOCAB - 1)
        for token in tokens[-8:]:
            value = (value * 31 + token + 1) % 10_007
        return (value + len(tokens)) % VOCAB

    def logits(self, tokens: Sequence[int], vocab_size: int = VOCAB) -> npt.NDArray[np.float32]:
        """Where penalties and the like count; so flat that they often decide."""
        value = 7
        for token in tokens[-3:]:
            value = (value * 31 + token + 1) % len(_LOGITS)
        return _LOGITS[value, :vocab_size]

    def answer(self, tokens: Sequence[int], settings: AnswerSettings) -> list[int]:
        """The plain text: with no link, no drafts and no other user."""
        rule = FinishRule(settings, len(tokens), CONTEXT, END_OF_TEXT, decode)
        text, finish, sampling = list(tokens), Finish.UNFINISHED, settings.sampling.within(len(tokens))
        while finish is Finish.UNFINISHED:
            new, finish = rule.cut(text[len(tokens) :], [self.next(text, sampling)])
            text += new
        return text[len(tokens) :]


class Drafter:
    """Guesses a target's text. `right`: how often; `trees`: several tokens for a place."""

    reads_memory = False
    most_depth = None

    def __init__(self, target: Target, chance: Random, right: float, *, trees: bool) -> None:
        self.right, self.trees = right, trees
        self._target, self._chance = target, chance
        self._tokens: list[int] = []

    def restart(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def remember(self, start: int, rows: Any, *, state: bool) -> None:
        raise AssertionError("this drafter reads no memory")

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        chance, last = self._chance, len(draft) - 1
        if last >= 20 or chance.random() < 0.05:
            return Growth()
        parents = [chance.randint(ROOT, last) for _ in range(chance.randint(1, 3))] if self.trees else [last]
        paths = [[draft.tokens[at] for at in draft.path_to(parent)] for parent in parents]
        return Growth(tuple(self._guess(path, sampling) for path in paths), tuple(parents))

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        return self._guess(draft.tokens, sampling), self._chance.random()

    def _guess(self, draft: Sequence[int], sampling: Sampling) -> int:
        is_right = self._chance.random() < self.right
        return self._target.next([*self._tokens, *draft], sampling) if is_right else self._chance.randrange(VOCAB)


class Companion(Drafter):
    """Reads texts itself, in no time, and is rather sure of what it writes."""

    def read_on(self, sampling: Sampling, *, writes: bool) -> bool:
        return False

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        return self._guess(draft.tokens, sampling), 0.95


class _Letters:
    """A tokenizer, as far as it shows text."""

    chat_template = ""
    shown = staticmethod(decode)


def device(drafter: Drafter | None) -> Device:
    """What a client holds of the target."""
    target = loading.Target(cast(Any, None), cast(Any, _Letters()), IDENTITY, END_OF_TEXT, CONTEXT)
    return Device(target, Drafting(lambda: drafter) if drafter is not None else None)


class SimulatedExecutor(DrafterExecutor):
    """Calls in order, each after a while. `seconds`: how long the next one takes."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._free = 0.0

    def submit(self, call: Callable[[], Result], seconds: float | None = None) -> asyncio.Future[Result]:
        self._free = max(asyncio.get_running_loop().time(), self._free) + (
            self._seconds() if seconds is None else seconds
        )
        return asyncio.ensure_future(self._run(call, self._free))

    async def _run(self, call: Callable[[], Result], due: float) -> Result:
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        return call()

    def close(self) -> None:
        pass


class ModelThread(InferenceThread):
    """The thread of a server's target. `seconds`: how long the next forward takes."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        super().__init__()
        self._executor = SimulatedExecutor(seconds)

    def start(self) -> None:
        """There is no thread."""

    def submit(self, job: Callable[[], None], *, urgent: bool = False) -> None:
        self._executor.submit(job, 0.0 if urgent else None)


class SimulatedStepper(Stepper):
    """Steps sessions of the scripted target, with tokens for keys and values.

    `work`: called for each forward. `checkpoint_tokens`: as of a target.
    """

    def __init__(self, target: Target, work: Callable[[], None], checkpoint_tokens: int = 0) -> None:
        super().__init__(cast(Any, SimpleNamespace(page_tokens=0, checkpoint_tokens=checkpoint_tokens)))
        self._scripted, self._work = target, work

    def new_tensors(self) -> Any:
        cache = SimulatedCache(has_states=self.target.checkpoint_tokens > 0)
        return SimpleNamespace(cache=cache, planes={}, source=None, nbytes=0, release=lambda: None)

    def verify_all(self, work: Sequence[Work]) -> list[Outcome]:
        self._work()
        return [self.verify_plan(cast(SimulatedCache, each.tensors.cache), each.plan) for each in work]

    def verify_plan(self, cache: SimulatedCache, plan: StepPlan) -> Verification | None:
        assert len(cache) >= plan.cached, "the cache lacks tokens that the session believes in"
        assert cache.crop(plan.cached) == plan.cached, "the cache has no states where the session believes in some"
        cache += plan.feed
        cache.take_in(plan)
        if not plan.chooses:
            return None
        texts = [[*cache, *path] for path in [(), *plan.tree.paths]]
        if plan.sampling.adjusts:
            rows = np.stack([self._scripted.logits(text) for text in texts])
            chosen = select(rows, plan.positions, plan.sampling, plan.text_before)
        else:
            chosen = [self._scripted.next(text, plan.sampling) for text in texts]
        verification = plan.verify(chosen)
        cache += [plan.tree.tokens[node] for node in verification.kept]
        return verification


class SimulatedCache(list[int]):
    """Tokens for keys and values, with or without recurrent states, which cannot be cut."""

    def __init__(self, *, has_states: bool = False) -> None:
        super().__init__()
        self.checkpoint_nbytes = int(has_states)
        self._taken_in, self._checkpoints = 0, [0]

    def crop(self, length: int) -> int:
        if self.checkpoint_nbytes and length < self._taken_in:
            self._checkpoints = [place for place in self._checkpoints if place <= length]
            self._taken_in = length = self._checkpoints[-1]
        del self[length:]
        return length

    def take_in(self, plan: StepPlan) -> None:
        self._taken_in = len(self)
        if plan.leaves_checkpoint:
            self._checkpoints = [0, *kept_checkpoints([*self._checkpoints[1:], len(self)])]

    def most_nbytes(self, rows: int, drafted: int = 0) -> int:
        return rows
