from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from moa_server.drafting.draft_decision import MemorySource
from moa_server.engine.stepper import CodedRows, NewestRows, SessionTensors, Stepper, Work
from moa_server.session.memory_feed import Chunk
from moa_server.session.verification import NO_DRAFT, StepPlan, Verification
from moa_server.verifier import Target, TargetOutput
from moa_shared.errors import InternalError
from moa_shared.protocol.memory_codec import Codec, decode, row_bytes
from moa_shared.protocol.messages import AnswerSettings, FinishRule, Plane
from moa_shared.sampling.coupling import select
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from tests.support.tiny_models import HYBRID, tiny_kernel_target, tiny_model

VOCAB = 61
PROMPT = [3, 14, 15, 9, 26]
WIDTH = 8


@pytest.fixture(scope="module", params=[pytest.param("torch", marks=pytest.mark.torch), "kernels", HYBRID])
def target(request: pytest.FixtureRequest) -> Target:
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 600,
    }  # fmt: skip
    if request.param == HYBRID:
        kinds = ["linear_attention", "full_attention", "full_attention"]
        return tiny_kernel_target(tiny_model(HYBRID, **{**sizes, "num_hidden_layers": 3, "layer_types": kinds}))
    if request.param == "kernels":
        return tiny_kernel_target(tiny_model(**sizes))
    from moa_server.verifier.torch_target import TorchTarget

    from tests.support.torch_models import torch_model

    return TorchTarget(torch_model(**sizes))


Rows = npt.NDArray[np.float32]


def encode(kv: Rows) -> Rows:
    return np.ascontiguousarray(kv.reshape(len(kv), -1)[:, ::16])


@pytest.fixture
def stepper(target: Target) -> Stepper:
    return Stepper(target, [MemorySource(encode, WIDTH, 1)])


def tensors(stepper: Stepper) -> SessionTensors:
    held = stepper.new_tensors()
    source = stepper.sources[0]
    held.keep_rows(source, stepper.kept_widths(source, stepper.widths(source, reused_state=True), drafts=False))
    return held


def plan(
    cached: int,
    feed: Sequence[int],
    tree: DraftTree = NO_DRAFT,
    *,
    chooses: bool = True,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    **more: Any,
) -> StepPlan:
    settings = AnswerSettings(sampling)
    rule = FinishRule(settings, cached + len(feed), 600, frozenset(), str)
    return StepPlan(0, cached, tuple(feed), tree, chooses, rule, (), **more)


def verify(stepper: Stepper, held: SessionTensors, step: StepPlan) -> Verification | None:
    """The step of one session."""
    [outcome] = stepper.verify_all([Work(held, step)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def plain(target: Target, count: int, sampling: Sampling) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(count):
        logits = target.forward(target.new_cache(), tokens).logits[-1:]
        tokens += select(logits, [len(tokens)], sampling)
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=4)])
def test_a_tree_is_verified_below_the_last_token_fed(target: Target, stepper: Stepper, sampling: Sampling) -> None:
    a, b, c, d = plain(target, 4, sampling)
    wrong = (a + 1) % VOCAB
    tree = DraftTree((wrong, a, b, wrong, c), (-1, -1, 1, 1, 2))
    held = tensors(stepper)
    verification = verify(stepper, held, plan(0, PROMPT, tree, sampling=sampling))
    assert verification is not None
    assert verification.taken == (a, b, c, d)
    assert verification.kept == (1, 2, 4)
    assert held.cache.length == len(PROMPT) + 3
    following = verify(stepper, held, plan(len(PROMPT) + 3, [d], sampling=sampling))
    assert following is not None
    assert following.taken == tuple(plain(target, 5, sampling)[4:])


@pytest.mark.parametrize(
    "fault", [RuntimeError("on fire"), MemoryError(), InternalError], ids=["error", "memory", "nan"]
)
def test_a_fault_in_a_forward_of_sixteen_costs_one_session_its_step(
    target: Target, stepper: Stepper, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    held, forward = [tensors(stepper) for _ in range(16)], stepper.forward_all
    victim = held[7]

    def fail(work: Sequence[Work]) -> list[TargetOutput]:
        places = [place for place, each in enumerate(work) if each.tensors is victim]
        if places and fault is not InternalError:
            raise fault
        outputs = forward(work)
        for place in places:
            outputs[place].logits[:] = np.nan
        return outputs

    first, second = plain(target, 2, Sampling())
    monkeypatch.setattr(stepper, "forward_all", fail)
    outcomes = stepper.verify_all([Work(each, plan(0, PROMPT)) for each in held])
    assert isinstance(outcomes.pop(7), InternalError if fault is InternalError else type(fault))
    assert [each.taken for each in outcomes if isinstance(each, Verification)] == [(first,)] * 15
    outcomes = stepper.verify_all([Work(each, plan(len(PROMPT), [first])) for each in held if each is not victim])
    assert [each.taken for each in outcomes if isinstance(each, Verification)] == [(second,)] * 15


@pytest.mark.parametrize("lost", [0, 64])
def test_states_that_a_failed_forward_tears_are_read_again(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last checkpoint on: of what comes before nothing is."""
    target = tiny_kernel_target(tiny_model(HYBRID, vocab_size=VOCAB))
    stepper, text = Stepper(target), [place % VOCAB for place in range(70)]
    held, network, fed = [stepper.new_tensors() for _ in range(3)], target.network, list[int]()
    for each in held[:2]:
        verify(stepper, each, plan(0, text[:64], chooses=False, leaves_checkpoint=lost > 0))
    forward, hidden = network.forward, network.hidden

    def count(tokens: Sequence[int], *rest: Any) -> Any:
        fed.append(len(tokens))
        return hidden(tokens, *rest)

    def fail_once(*rest: Any) -> Any:
        monkeypatch.setattr(network, "forward", forward)
        forward(*rest)
        raise MemoryError

    monkeypatch.setattr(network, "hidden", count)
    work = [Work(each, plan(64, text[64:], DraftTree((1, 2), (-1, -1)), text=text)) for each in held[:2]]
    monkeypatch.setattr(network, "forward", fail_once)
    outcomes = stepper.verify_all(work)
    assert fed == [16, *([64 - lost] if lost < 64 else []), 8, *([64 - lost] if lost < 64 else []), 8]
    [expected] = stepper.verify_all([Work(held[2], plan(0, text, DraftTree((1, 2), (-1, -1))))])
    assert outcomes == [expected] * 2


def memory_rows(stepper: Stepper, held: SessionTensors, start: int, stop: int) -> Rows:
    nbytes = (stop - start) * row_bytes(Codec.BF16, WIDTH)
    coded = stepper.code(held, Chunk(Plane.MEMORY, start, stop - start, Codec.BF16, nbytes))
    return decode(coded.payload, Codec.BF16, stop - start, WIDTH)


def test_work_that_goes_back_crops_cache_and_rows(target: Target, stepper: Stepper) -> None:
    held, fresh = tensors(stepper), tensors(stepper)
    assert verify(stepper, held, plan(0, [*PROMPT[:2], 1, 2, 3, 4, 5], chooses=False)) is None
    memory_rows(stepper, held, 0, 7)
    for one, cached in ((held, 2), (fresh, 0)):
        verify(stepper, one, plan(cached, PROMPT[cached:], text=PROMPT))
    ours, theirs = (memory_rows(stepper, one, 0, len(PROMPT)) for one in (held, fresh))
    np.testing.assert_allclose(ours, theirs, atol=0.02)
    ours, theirs = (one.planes[Plane.REUSED_STATE].read(0, len(PROMPT)) for one in (held, fresh))
    np.testing.assert_allclose(ours, theirs, atol=0.02)


@pytest.mark.parametrize("plane", [Plane.REUSED_STATE, Plane.MEMORY])
def test_rows_that_a_forward_makes_are_kept_along_the_path(target: Target, plane: Plane) -> None:
    """States, or EAGLE-2's memory rows: the last hidden states, which cannot be made of the cache later."""
    source = MemorySource(encode, WIDTH, 1)
    if plane is Plane.MEMORY:
        source = MemorySource(target.normed, target.hidden_size, None, reads_layers=(target.layer_count,))
    assert source.layers_of(plane)
    stepper = Stepper(target, [source])
    a, b, _ = plain(target, 3, Sampling())
    held = tensors(stepper)
    verify(stepper, held, plan(0, PROMPT, DraftTree(((a + 1) % VOCAB, a, b), (-1, -1, 1))))
    output = target.forward(target.new_cache(), [*PROMPT, a, b], want_state_layer=1)
    expected = output.states[1] if plane is Plane.REUSED_STATE else output.hidden
    np.testing.assert_allclose(held.planes[plane].read(0, len(PROMPT) + 2), expected, atol=0.03)


def test_rows_of_several_sessions_have_the_bytes_that_they_have_alone(stepper: Stepper) -> None:
    """Of different lengths and codecs, one of them coded before."""
    wanted = []
    for length, codec in ((5, Codec.INT4), (3, Codec.INT8), (4, Codec.INT4)):
        held = tensors(stepper)
        verify(stepper, held, plan(0, PROMPT[:length]))
        wanted.append((held, NewestRows(Plane.MEMORY, 0, codec, 8)))
    [alone] = stepper.code_newest(wanted[2:])
    together = stepper.code_newest(wanted)
    assert together[2] == alone
    for (held, _), coded in zip(wanted, together, strict=True):
        assert isinstance(coded, CodedRows)
        assert coded == stepper.code(held, coded.chunk)
        assert len(coded.payload) == coded.chunk.nbytes


def test_rows_that_cannot_be_made_fail_alone(stepper: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []
    for _ in range(2):
        held = tensors(stepper)
        verify(stepper, held, plan(0, PROMPT))
        wanted.append((held, NewestRows(Plane.MEMORY, 0, Codec.INT4, 8)))

    def fail(start: int, stop: int) -> NoReturn:
        raise ValueError("broken")

    monkeypatch.setattr(wanted[0][0].cache, "_check_held", fail)  # before any row is read
    broken, whole = stepper.code_newest(wanted)
    assert isinstance(broken, ValueError)
    assert isinstance(whole, CodedRows)


def test_a_session_whose_rows_cannot_be_made_is_lost_alone(target: Target) -> None:
    def encode(states: Rows) -> Rows:
        if len(states) != len(PROMPT):
            raise MemoryError
        return states

    stepper = Stepper(target, [MemorySource(encode, target.hidden_size, None, reads_layers=(1,))])
    first, second = tensors(stepper), tensors(stepper)
    outcomes = stepper.verify_all([Work(first, plan(0, PROMPT)), Work(second, plan(0, PROMPT[:-1]))])
    assert isinstance(outcomes[0], Verification)
    assert isinstance(outcomes[1], MemoryError)
