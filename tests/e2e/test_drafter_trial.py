"""On the real target the shipped drafter passes its trial, and one with the same sizes that means other tokens does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc.aio
import numpy as np
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.drafter import load_checkpoint
from moa_shared.drafter.checkpoint.checkpoint import save_checkpoint
from moa_shared.drafter.checkpoint.shipped import shipped_drafter
from moa_shared.drafter.published.measured import recall_trial
from moa_shared.drafting.trial import TRIAL_TOKENS, TrialResult
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.protobuf_messages import settings_to_proto

from tests.net.server_peer import serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("real target")]

QUESTIONS = (
    "Explain to a child how rain comes about.",
    "Write a short story about a fox and a river.",
    "Why do people sleep?",
    "How do I repair a flat bicycle tyre?",
    "Describe a market in the morning.",
    "What are the advantages of trains over cars?",
)
SETTINGS = AnswerSettings(max_tokens=150, ignore_end_of_text=True)


async def first_answers(files: ModelFiles, drafter: str, cache: Path) -> tuple[TrialResult, list[int]]:
    """The trial's result, and the text of the answers that it took."""
    settings = ServerSettings(
        model="default", drafter=drafter, port=0, execution="int8", allow_ignore_end_of_text=True, cache_dir=cache
    )
    host, tokenizer = load_host(settings, SilentProgress()), load_tokenizer(files)
    [own] = {source.drafter for source in host.services.engine.stepper.sources}
    assert own is not None
    text: list[int] = []
    async with serving(host) as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        stub = moa_pb2_grpc.MoaStub(channel)
        for question in QUESTIONS:
            chat = [{"role": "user", "content": question}]
            tokens = tokenizer.encode(tokenizer.apply_chat_template(chat, add_generation_prompt=True))
            request = pb.GenerateRequest(tokens=tokens, sampling=settings_to_proto(SETTINGS))
            text += [token async for part in stub.Generate(request) for token in part.tokens]
            if not own.trial.is_open:
                break
    print(drafter, own.trial.result, own.trial.figures)
    return own.trial.result, text


async def test_the_shipped_one_stays_and_a_permuted_one_goes(default_model_files: ModelFiles, tmp_path: Path) -> None:
    files, cache = default_model_files, tmp_path / "cache"
    shipped = shipped_drafter(files.fingerprint)
    assert shipped is not None
    checkpoint = load_checkpoint(shipped)
    ids = np.random.default_rng(0).permutation(checkpoint.tensors["draft_ids"])
    save_checkpoint(
        tmp_path / "permuted.safetensors",
        replace(checkpoint.config, target_fingerprint=""),
        {**checkpoint.tensors, "draft_ids": ids},
    )
    kept, text = await first_answers(files, "default", cache)
    dropped, same = await first_answers(files, str(tmp_path / "permuted.safetensors"), cache)
    assert kept is TrialResult.KEPT
    assert dropped is TrialResult.DROPPED
    length = min(len(text), len(same))
    assert text[:length] == same[:length]
    measured = recall_trial(cache, "permuted", files.fingerprint)
    assert measured is not None
    assert measured.is_dropped
    assert measured.tokens == TRIAL_TOKENS
