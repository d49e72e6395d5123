import random
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
import torch
from moa_client.drafting.drafters import MoaDrafter
from moa_server.engine.stepper import below_chain
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.drafter.checkpoint import Checkpoint
from moa_shared.drafting.drafts import TreeShape, draft_chain, draft_tree
from moa_shared.drafting.estimates import TokenOrigin, chance_of
from moa_shared.drafting.growing import GrowthShape
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.models import ModelFiles, WeightReader, load_target_model
from moa_shared.sampling.coupling import select
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree, longest_path
from moa_training.evaluation.subjects import (
    Acceptance,
    DrafterSubject,
    DraftShape,
    LookupSubject,
    WritingLimit,
    make_draft,
)
from moa_training.evaluation.subjects import verify as verify_draft
from moa_training.fit.setup import drafter_config, starting_tensors
from moa_training.teacher.target_reader import GREEDY, TorchReader, sampling_for
from moa_training.teacher.teacher import load_teacher

from tests.support.tiny_training import tiny_settings

SHAPES = [DraftShape(4), DraftShape(9, TreeShape(depth=3, breadth=3, nodes=9))]
PROMPT = random.Random(1).choices(range(5, 90), k=11)


def checkpoint(files: ModelFiles, reused: int, kind: str = "moa") -> tuple[Checkpoint, TorchReader]:
    drafter = {"kind": kind, "own_layers": 2, "reused_layers": reused, "draft_vocab": 60}
    config = drafter_config(tiny_settings(drafter=drafter), files)
    teacher = load_teacher(files, reused, torch.float32, torch.device("cpu"))
    ids = torch.arange(60, dtype=torch.int32)
    begun = starting_tensors(config, teacher, ids, 1, warm=True)  # of this seed some guesses are right
    tensors = {name: value.numpy() for name, value in begun.items()}
    return Checkpoint(config, tensors, ""), TorchReader(teacher, "float32")


def subject_of(files: ModelFiles, reused: int, kind: str = "moa", stop_ids: Collection[int] = ()) -> DrafterSubject:
    return DrafterSubject(*checkpoint(files, reused, kind), WeightReader(files), "float32", stop_ids)


@torch.inference_mode()
def verify(
    files: ModelFiles, subject: DrafterSubject, shape: DraftShape, tokens: int, sampling: Sampling = GREEDY
) -> tuple[list[int], Acceptance]:
    """The real thing: the server's target and cache, a draft and a verdict at a time."""
    model: Any = load_target_model(files, torch.float32)
    target = TorchTarget(model)
    cache, rows = target.new_cache(), subject._rows
    assert rows is not None
    layer = 4 - subject.reader.reused_layers if subject.reader.reused_layers else None
    ids, counts = list(PROMPT), Acceptance()
    first = target.forward(cache, ids, want_state_layer=layer)
    states = [*first.states.values()]
    ids += select(first.logits[-1:], [len(ids)], sampling)
    while len(ids) < len(PROMPT) + tokens:
        drafter, newest = subject._new_state(), len(ids) - 1
        drafter.extend(ids)
        drafter.append_memory(0, rows(cache.lsa_input(0, newest)))
        if layer is not None:
            drafter.append_reused_state(0, np.concatenate(states))
        if shape.tree is None:
            tree: DraftTree = draft_chain(drafter, min(shape.nodes, len(PROMPT) + tokens - len(ids)), sampling)
        else:
            tree = draft_tree(drafter, shape.tree, sampling)
        parents = below_chain(1, tree.parents)
        out = target.forward(cache, [ids[-1], *tree.tokens], parents, slice(None), layer)
        chosen = select(out.logits, [newest + 1, *(newest + 1 + depth for depth in tree.depths)], sampling)
        path, bonus = longest_path(tree, chosen[0], chosen[1:])
        path = path[: len(PROMPT) + tokens - len(ids)]  # what lies behind the text was not written
        kept = [0, *(node + 1 for node in path)]
        cache.keep(kept)
        states += [state[kept] for state in out.states.values()]
        counts.add(len(path))
        ids += [*(tree.tokens[node] for node in path), bonus]
    return ids[len(PROMPT) :], counts


@pytest.mark.parametrize("reused", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_the_replay_counts_what_the_real_verifier_accepts(
    files: ModelFiles, reused: int, shape: DraftShape, temperature: float
) -> None:
    sampling = Sampling(temperature)
    subject = DrafterSubject(*checkpoint(files, reused), WeightReader(files), "float32", sampling=sampling)
    answer, expected = verify(files, subject, shape, 40, sampling_for(sampling, PROMPT))
    (got,) = subject.replay(PROMPT, answer[:40], [shape])
    assert (got.forwards, got.accepted[:-1]) == (expected.forwards, expected.accepted[: len(got.accepted) - 1])
    assert sum(got.accepted[1:]) > 0


@pytest.mark.parametrize("reused", [0, 2])
def test_a_run_after_a_cut_is_what_the_drafter_writes_there(files: ModelFiles, reused: int) -> None:
    """Although one state goes from cut to cut."""
    subject = subject_of(files, reused)
    answer, _ = verify(files, subject, SHAPES[0], 40)
    cuts = [*range(33), 33, 33, 39]
    runs = subject.runs(PROMPT, answer[:40], cuts, WritingLimit(8))
    assert ([len(run.tokens) for run in runs[-3:]], [run.judged for run in runs[-3:]]) == ([8, 8, 8], [7, 7, 1])
    for cut, run in zip(cuts, runs, strict=True):
        (alone,) = subject.runs(PROMPT, answer[:40], [cut], WritingLimit(8))
        assert run.tokens == alone.tokens
        pairs = zip(run.tokens, answer[cut:40], strict=False)
        assert run.right == next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), run.judged)
        assert all(written.log_chance <= 0 for written in run.written)
    assert any(run.right for run in runs)


@pytest.mark.parametrize("reused", [0, 2])
def test_a_run_is_what_the_client_writes(files: ModelFiles, reused: int) -> None:
    """With memory of all but the newest token, a token at a time."""
    made, reader = checkpoint(files, reused)
    subject = DrafterSubject(made, reader, WeightReader(files), "float32")
    answer = [*PROMPT[:4], 7, *PROMPT[:4]]  # there is something to copy
    (run,) = subject.runs(PROMPT, answer, [9], WritingLimit(12))
    guesser = TextGuesser()
    new_state = made.states(WeightReader(files), "float32")
    client = MoaDrafter(new_state, reads_memory=True, shape=GrowthShape(breadth=4), guesser=guesser)
    rows, state = subject._read([*PROMPT, *answer])
    newest = len(PROMPT) + 8
    client.restart(PROMPT)
    client.commit(answer)
    client.remember(0, rows[:newest], state=False)
    if state is not None:
        client.remember(0, state[:newest], state=True)
    written: list[int] = []
    for expected in run.written:
        got = client.write(DraftTree.chain(written), Sampling())
        assert got is not None
        assert got[0] == expected.token
        assert got[1] == pytest.approx(chance_of(expected, None))
        written.append(expected.token)
    assert (run.written[0].token, run.written[0].origin) == (7, TokenOrigin.COPY)


def test_a_run_ends_with_the_answer_and_where_there_is_no_room(files: ModelFiles) -> None:
    answer = random.Random(3).choices(range(5, 90), k=20)
    (free,) = subject_of(files, 0).runs(PROMPT, answer, [4], WritingLimit(12))
    stop = free.tokens[5]
    ended = subject_of(files, 0, stop_ids=[stop])
    (run,) = ended.runs(PROMPT, answer, [4], WritingLimit(12))
    assert run.tokens == free.tokens[: free.tokens.index(stop) + 1]
    (run,) = ended.runs(PROMPT, [*answer[:6], stop], [4], WritingLimit(12))
    assert run.judged == len(run.tokens)  # whatever follows the end of an answer is wrong
    short, none = subject_of(files, 0).runs(PROMPT, answer, [4, 9], WritingLimit(12, whole=9))
    assert (short.tokens, none.tokens) == (free.tokens[:5], [])


def test_lookup_is_accepted_where_the_answer_repeats_the_question(files: ModelFiles) -> None:
    subject = LookupSubject(TorchReader(load_teacher(files, 0, torch.float32, torch.device("cpu")), "float32"))
    (copied,) = subject.replay(PROMPT, PROMPT, [DraftShape(4)])
    assert copied.length > 3.5
    assert copied.forwards < 5
    (fresh,) = subject.replay([5, 6, 7], list(range(8, 30)), [DraftShape(4)])
    assert fresh.accepted == [21]
    (run,) = subject.runs(PROMPT, [*PROMPT[:2], 99], [2], WritingLimit(4))
    assert (run.tokens, run.right, run.judged, run.written[0].origin) == (PROMPT[2:6], 0, 1, TokenOrigin.COPY)


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["eagle2", "independent"])
def test_baselines_guess_from_what_a_client_holds(files: ModelFiles, kind: str, shape: DraftShape) -> None:
    """A replay tells features bit by bit; a drafter that is told all at once guesses the same."""
    subject = subject_of(files, 0, kind)
    answer = random.Random(3).choices(range(5, 90), k=25)
    (got,) = subject.replay(PROMPT, answer, [shape])
    ids, expected, newest = [*PROMPT, *answer], Acceptance(), len(PROMPT)
    hidden = subject.reader.read(ids).last_hidden
    while newest + 1 < len(ids):
        state = subject._new_state()
        state.extend(ids[: newest + 1])
        state.append_memory(0, hidden[:newest])
        tree = make_draft(state, shape, len(ids) - 1 - newest, GREEDY)
        newest += verify_draft(tree, ids, newest, expected)
    assert got.accepted == expected.accepted


def test_counts_merge() -> None:
    total = Acceptance([1, 0])
    total.merge(Acceptance([1, 1, 2]))
    assert (total.accepted, total.length) == ([2, 1, 2], 2.0)
