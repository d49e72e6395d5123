"""A real client over a real server: whatever drafts, the text is the target's own."""

from __future__ import annotations

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_server.service.host import Host
from moa_server.verifier.target import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import VOCAB, plain_text, serving
from tests.net.test_client_engine import PROMPT, ask


async def check_texts(host: Host, device: Device, target: Target, *, rounds: bool) -> None:
    """Asks greedily and sampled, and compares with what the target writes by itself."""
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0)]) as link:
        engine = ClientEngine(link, device, VOCAB, Codec.BF16, DraftingSettings(rounds=rounds))
        try:
            for temperature in (0.0, 0.7):
                settings = AnswerSettings(Sampling(temperature, seed=3), max_tokens=40)
                expected, _ = plain_text(target, PROMPT, settings)
                engine.rewind(0)
                assert await ask(engine, PROMPT, settings) == expected
        finally:
            await engine.close()
