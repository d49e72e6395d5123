"""Which models may be companions of which, what is known of them, and that one's state says what the model itself says."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_kernels import F32, Segment
from moa_shared.drafter.companion import (
    ANOTHER_MODEL,
    SAME_MODEL,
    CompanionState,
    _tokens,
    cache_file,
    check_vocabulary,
    confidence_beside,
    fitting_companions,
    recall_agreement,
    remember_agreement,
    write_confidence,
)
from moa_shared.drafting.estimates import PRIOR_EVIDENCE, Agreement, LearnedConfidence
from moa_shared.errors import CheckpointError, MismatchError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.network.network import Network
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sandbox.tokenizer_json import JsonTokenizer

from tests.support.decoders import Rows
from tests.support.skipping import examples
from tests.support.tiny_models import HYBRID, SIZES, ModelWeights, save_tiny_model, tiny_model


@pytest.mark.parametrize(
    ("family", "rows", "hidden", "fitting"),
    [
        ("llama", 49152, 2048, ["SmolLM2-360M-Instruct", "SmolLM2-135M-Instruct"]),  # SmolLM2-1.7B
        ("llama", 49152, 576, []),  # SmolLM2-135M itself
        ("llama", 32000, 4096, []),  # Llama 2
        ("qwen3_moe", 151936, 2048, ["Qwen3-0.6B"]),  # Qwen3-30B-A3B
        ("qwen3_5_text", 248320, 2560, ["Qwen3.5-0.8B"]),
        ("gemma3_text", 262144, 1152, ["gemma-3-270m-it"]),  # Gemma-3-1B
    ],
)
def test_by_family_vocabulary_and_size(family: str, rows: int, hidden: int, fitting: list[str]) -> None:
    config: dict[str, Any] = {"model_type": family, "vocab_size": rows, "hidden_size": hidden}
    assert [known.partition("/")[2] for known in fitting_companions(config)] == fitting


WORDS = ["<end>", "a", "b", "c"]


def vocabulary(words: Sequence[str] = WORDS, special: Sequence[str] = ("<end>",)) -> Tokenizer:
    numbers = {word: number for number, word in enumerate(words)}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": numbers[word], "content": word, "special": True, **plain} for word in special]
    model = {"type": "WordLevel", "vocab": numbers, "unk_token": "?"}
    content = {"version": "1.0", "added_tokens": added, "model": model}
    return Tokenizer(JsonTokenizer(json.dumps(content)))


def test_padding_and_what_only_the_companion_has_are_no_difference() -> None:
    padded = [*WORDS, "[PAD4]", "[PAD5]"]
    check_vocabulary(vocabulary(padded), vocabulary(), "small", "large")
    check_vocabulary(vocabulary(), vocabulary(padded), "small", "large")
    check_vocabulary(vocabulary([*WORDS, "d"]), vocabulary(), "small", "large")
    assert max(_tokens(vocabulary(padded))) == max(_tokens(vocabulary())) == 3


@pytest.mark.parametrize(
    ("small", "large", "words"),
    [
        (vocabulary(["<end>", "a", "B", "C"]), vocabulary(), "token 2 is 'b' there and 'B' here"),
        (vocabulary(), vocabulary([*WORDS, "d"]), "token 4 is 'd' there and none here"),
        (vocabulary(), vocabulary(special=()), "token 0 is '<end>' there and the special token"),
    ],
)
def test_the_first_token_that_differs_is_named_with_both_texts(small: Tokenizer, large: Tokenizer, words: str) -> None:
    with pytest.raises(MismatchError, match=f"small cannot be a companion of large: {words}"):
        check_vocabulary(small, large, "small", "large")


PAIR = "c" * 64, "t" * 64


@pytest.mark.parametrize("damaged", ["", "[]", '{"tokens": 5, "right": 6}', '{"tokens": 1e9, "right": 6}'])
def test_a_record_is_of_both_models_and_counts_as_none_where_it_is_damaged(tmp_path: Path, damaged: str) -> None:
    remember_agreement(tmp_path, *PAIR, Agreement(50, 40))
    assert recall_agreement(tmp_path, *PAIR) == Agreement(50, 40)
    assert recall_agreement(tmp_path, *reversed(PAIR)) == Agreement()
    [record] = (tmp_path / "hashes").iterdir()
    record.write_text(damaged)
    assert recall_agreement(tmp_path, *PAIR) == Agreement()


MEASURED, ANOTHER = LearnedConfidence(1.25, 20.0), LearnedConfidence(-0.5, 3.0)


@pytest.fixture
def target(tmp_path: Path) -> ModelFiles:
    return resolve(str(save_tiny_model(tmp_path / "large")), tmp_path / "cache")


@pytest.fixture
def companion(tmp_path: Path) -> ModelFiles:
    return resolve(str(save_tiny_model(tmp_path / "small", seed=9, num_hidden_layers=2)), tmp_path / "cache")


def test_a_file_of_both_models_counts_beside_the_companion_and_in_the_cache(
    companion: ModelFiles, target: ModelFiles, tmp_path: Path
) -> None:
    assert confidence_beside(companion, target, tmp_path) == LearnedConfidence(ANOTHER_MODEL, PRIOR_EVIDENCE)
    itself = replace(target, fingerprint="f" * 64)  # in another format
    assert confidence_beside(itself, target, tmp_path) == LearnedConfidence(SAME_MODEL, PRIOR_EVIDENCE)
    (companion.folder / "confidence.json").write_text('{"drafter_fingerprint": "of a drafter", "curves": {}}')
    write_confidence(companion.folder / "b.confidence.json", ANOTHER, companion.fingerprint, "0" * 64)
    cached = cache_file(companion.fingerprint, target.fingerprint, tmp_path)
    write_confidence(cached, MEASURED, companion.fingerprint, target.fingerprint)
    found = confidence_beside(companion, target, tmp_path)
    assert found == MEASURED
    found.learn(0.5, right=False)
    assert confidence_beside(companion, target, tmp_path) == MEASURED  # what is learnt is not written
    write_confidence(companion.folder / "c.confidence.json", ANOTHER, companion.fingerprint, target.fingerprint)
    assert confidence_beside(companion, target, tmp_path) == ANOTHER


@pytest.mark.parametrize(
    "content", ["", "[]", '"shift": 1e9, "evidence": 1', '"shift": 1, "evidence": 0', '"shift": 1']
)
def test_what_is_no_such_file_is_refused(
    companion: ModelFiles, target: ModelFiles, tmp_path: Path, content: str
) -> None:
    pair = f'"companion_fingerprint": "{companion.fingerprint}", "target_fingerprint": "{target.fingerprint}"'
    fields = f"{{{pair}, {content}}}"
    (companion.folder / "confidence.json").write_text(fields if "shift" in content else content)
    with pytest.raises(CheckpointError, match="does not say how far a drafter can be trusted"):
        confidence_beside(companion, target, tmp_path)


VOCAB = SIZES["vocab_size"]
MODEL = tiny_model()
NETWORK = Network(ModelWeights(MODEL), MODEL.config, plain=True)
HYBRID_MODEL = tiny_model(HYBRID)
RECURRENT = Network(ModelWeights(HYBRID_MODEL), HYBRID_MODEL.config, plain=True)  # with states that cannot be cut
PROMPT = [5, 17, 42, 8, 17, 42]


def state(columns: int = VOCAB) -> CompanionState:
    return CompanionState(NETWORK, columns, kv=F32)


def said(tokens: list[int], network: Network = NETWORK) -> Rows:
    """The model's own logits after a text."""
    segment = Segment.chain(network.new_cache(kv=F32), len(tokens))
    logits: Rows = network.forward(tokens, [segment], [len(tokens) - 1])[0][0]
    return logits


@settings(max_examples=examples(30))
@given(data=st.data(), network=st.sampled_from([NETWORK, RECURRENT]), before=st.sampled_from([0, 60, 130]))
def test_text_read_ahead_cut_back_and_drafted_below_is_as_text_read_at_once(
    data: st.DataObject, network: Network, before: int
) -> None:
    def close(ours: Rows, tokens: list[int]) -> None:
        np.testing.assert_allclose(ours, said(tokens, network), atol=2e-5)

    companion, nodes = CompanionState(network, VOCAB, kv=F32), list[tuple[int, int]]()
    text = [*range(before // 2), *range(before - before // 2), *PROMPT]
    companion.extend(text)
    begun = False
    for _ in range(data.draw(st.integers(3, 12))):
        action = data.draw(st.sampled_from(["read", "begin", "expand", "expand", "along", "off", "crop"]))
        if action == "read":
            before = companion.unread
            companion.read(most := data.draw(st.integers(1, 4)))
            assert companion.unread == max(0, before - most)
        elif action == "begin" or (action in ("expand", "along") and not begun):
            close(companion.begin()[0], text)
            begun, nodes = True, []
        elif action == "expand":
            parents = data.draw(st.lists(st.integers(-1, len(nodes) - 1), min_size=1, max_size=3))
            added = [(10 + len(nodes) + index, parent) for index, parent in enumerate(parents)]
            for logits, node in zip(companion.expand(*zip(*added, strict=True)), added, strict=True):
                close(logits, text + path(nodes, node[1]) + [node[0]])
            nodes += added
        elif action == "along" and nodes:
            text += (taken := path(nodes, data.draw(st.integers(0, len(nodes) - 1))))
            kept = companion.extend(taken)
            assert kept is not None
            assert [path(nodes, node)[: len(taken)] for node in kept] == [taken] * len(kept)
            number = {former: now for now, former in enumerate(kept)}
            nodes = [(nodes[node][0], number.get(nodes[node][1], -1)) for node in kept]
        elif action == "off":
            text.append(90)
            assert companion.extend([90]) is None
            begun = False
        elif action == "crop":
            del text[data.draw(st.integers(1, len(text))) :]
            companion.crop(len(text))
            begun = False
    close(companion.begin()[0], text)


def path(nodes: list[tuple[int, int]], node: int) -> list[int]:
    return [] if node < 0 else [*path(nodes, nodes[node][1]), nodes[node][0]]


def test_it_says_nothing_that_the_target_lacks_and_reads_what_it_lacks_itself() -> None:
    companion = state(columns=40)
    companion.extend([*PROMPT, VOCAB + 7])
    assert companion.begin().shape == (1, 40)
    assert companion.expand([3], [-1]).shape == (1, 40)
    assert state(columns=VOCAB + 30).columns == VOCAB


def test_while_it_reads_it_can_say_what_it_would_have_said() -> None:
    companion, text = state(), [5, 17, 42, 8]
    text.append(int(said(text).argmax()))  # its own choice, then others
    text += [(text[-1] + 1) % VOCAB, 8, 9]
    companion.extend(text)
    asked = companion.read(6, 3)
    assert [each.position for each in asked] == [1, 4]
    for each in asked:
        logits = said(text[: each.position])
        chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        assert each.chance == pytest.approx(float(chances.max()), abs=1e-5)
        assert each.is_chosen == (text[each.position] == int(logits.argmax()))
    assert asked[1].is_chosen
    assert companion.read(10) == []  # not asked
    assert companion.read(10, 1) == []  # nothing is left to read
