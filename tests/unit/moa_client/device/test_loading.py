"""Server and device plan the layers that both run by the same context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import load_device
from moa_client.settings import ClientSettings
from moa_kernels import variant_name
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.programs.progress import SilentProgress

from tests.support.dense_families import tiny_dense
from tests.support.tiny_models import save_drafter, save_tokenizer, small_drafter

pytestmark = pytest.mark.torch


@pytest.mark.skipif(variant_name() == "numpy", reason="the level int8 needs kernels")
@pytest.mark.parametrize("context", [32, 128])
def test_longrope_s_factors_are_chosen_by_the_context_that_is_served(
    context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "tiny"
    tiny_dense("phi 4", eos_token_id=2).save_pretrained(folder)
    save_tokenizer(folder)
    shape = small_drafter(hidden_size=128, target_head_dim=32, reused_layers=2)
    path = save_drafter(tmp_path / "drafter.safetensors", shape)
    settings = ServerSettings(model=str(folder), drafter=str(path), context_length=context, threads=1)
    host = load_host(settings, SilentProgress())
    limits = pb.Limits(context_tokens=host.services.served.context_tokens)
    described = pb.DescribeResponse(
        identity=host.services.served.identity, drafters=host.services.served.drafters, limits=limits
    )
    client = ClientSettings(model=str(folder), drafter=str(path))
    device: Any = load_device(client, described, SilentProgress())
    stepper: Any = host.services._stepper
    [source] = stepper.sources
    served, _ = stepper.target.network.plan.rotaries[0].tables(8)
    for state in (source.drafter.new(), device.drafting.drafter._draft.state):
        reused, _ = state.decoder.reused.rotary.tables(8)
        np.testing.assert_array_equal(reused[:8], served[:8])
