from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import torch
from moa_shared.models import ModelFiles, load_target_model
from moa_training.teacher.generation import AnswerGenerator, TargetAnswer

STOP = {4}


def prompts(count: int, temperature: float = 0.0, most: int = 12) -> Iterator[TargetAnswer]:
    draw = random.Random(5)
    for index in range(count):
        yield TargetAnswer(str(index), "", draw.choices(range(5, 60), k=draw.randint(1, 15)), temperature, most)


def generator(files: ModelFiles, slots: int, seed: int = 0) -> AnswerGenerator:
    model = load_target_model(files, torch.float32)
    return AnswerGenerator(model, slots=slots, capacity=40, stop_ids=STOP, dtype=torch.float32, seed=seed)


def test_greedy_answers_are_those_of_one_prompt_at_a_time(files: ModelFiles) -> None:
    plain = load_target_model(files, torch.float32)
    answers = {answer.key: answer for answer in generator(files, 5).run(prompts(17))}
    assert len(answers) == 17
    for prompt in prompts(17):
        ids = list(prompt.prompt)
        with torch.inference_mode():
            while len(ids) < len(prompt.prompt) + 12:
                ids.append(int(plain(torch.tensor([ids])).logits[0, -1].argmax()))
                if ids[-1] in STOP:
                    break
        assert answers[prompt.key].tokens == ids[len(prompt.prompt) :]
        assert answers[prompt.key].finished == (ids[-1] in STOP)


def test_more_slots_than_prompts_and_answers_of_one_token(files: ModelFiles) -> None:
    assert len(list(generator(files, 16).run(prompts(3)))) == 3
    assert all(len(answer.tokens) == 1 for answer in generator(files, 4).run(prompts(9, most=1)))
    assert list(generator(files, 4).run(iter(()))) == []


def test_sampled_answers_follow_the_distribution(files: ModelFiles) -> None:
    model = load_target_model(files, torch.float32)
    prompt = [7, 8, 9]
    with torch.inference_mode():
        expected = (model(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
    asked = (TargetAnswer(str(index), "", prompt, 0.7, 1) for index in range(4000))
    drawn = Counter(answer.tokens[0] for answer in generator(files, 50, seed=3).run(asked))
    likely = int(expected.argmax())
    assert abs(drawn[likely] / 4000 - float(expected[likely])) < 0.03
    total_variation = sum(abs(drawn[token] / 4000 - float(share)) for token, share in enumerate(expected)) / 2
    assert total_variation < 0.08
