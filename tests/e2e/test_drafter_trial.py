"""On the real target the shipped drafter passes its trial, and one of the same sizes that was trained for nothing fails.

The device drafts and the server waits for it: where the target is as fast as here, the server seldom asks its drafter.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from moa_client.conversation.events import LOOK_UP, DrafterChanged
from moa_client.device.loading import load_device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.drafter.checkpoint.checkpoint import fresh_tensors, load_checkpoint, save_checkpoint
from moa_shared.drafter.checkpoint.shipped import shipped_drafter
from moa_shared.drafting.estimates import DrafterTrial
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec

from tests.net.server_peer import serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

QUESTIONS = (
    "Explain to a child how rain comes about.",
    "Write a short story about a fox and a river.",
    "Why do people sleep?",
    "How do I repair a flat bicycle tyre?",
    "Describe a market in the morning.",
    "What are the advantages of trains over cars?",
)
ANSWER = AnswerSettings(max_tokens=120)


async def first_answers(files: ModelFiles, drafter: Path) -> tuple[DrafterTrial, list[list[int]], list[DrafterChanged]]:
    """The trial of a drafter on a device, the answers that it took, and what was said about it."""
    host = load_host(ServerSettings(drafter=str(drafter), drafting="device", port=0), SilentProgress())
    tokenizer, answers, said = load_tokenizer(files), [], []
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 10.0, 60.0)]) as link:
        settings = ClientSettings(server=f"127.0.0.1:{running.port}", drafter=str(drafter))
        device = load_device(settings, await link.describe(), SilentProgress())
        assert device.drafting.trial is not None
        drafting = DraftingSettings(drafting="device", run_ahead=False, tree=True)
        engine = ClientEngine(link, device, int(files.config["vocab_size"]), Codec.INT4, drafting)
        try:
            for question in QUESTIONS:
                chat = [{"role": "user", "content": question}]
                engine.rewind(0)
                tokens = tokenizer.encode(tokenizer.apply_chat_template(chat, add_generation_prompt=True))
                said += [event async for event in engine.ask(tokens, ANSWER) if isinstance(event, DrafterChanged)]
                answers.append(list(engine.conversation.answer))
                if not device.drafting.trial.is_open:
                    break
        finally:
            await engine.close()
    return device.drafting.trial, answers, said


async def test_the_shipped_one_stays_and_a_random_one_goes(default_model_files: ModelFiles, tmp_path: Path) -> None:
    shipped, random = shipped_drafter(default_model_files.fingerprint), tmp_path / "random.safetensors"
    assert shipped is not None
    checkpoint = load_checkpoint(shipped)
    tensors = fresh_tensors(checkpoint.config, seed=1) | {"draft_ids": checkpoint.tensors["draft_ids"]}
    save_checkpoint(random, replace(checkpoint.config, target_fingerprint=""), tensors)
    kept, text, nothing = await first_answers(default_model_files, shipped)
    dropped, same, said = await first_answers(default_model_files, random)
    assert kept.is_dropped is False, kept.figures
    assert nothing == []
    assert dropped.is_dropped, dropped.figures
    assert [event.name for event in said] == [LOOK_UP]
    assert all(one == other for one, other in zip(text, same, strict=False))
