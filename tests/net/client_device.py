"""What a client of the tiny server holds: drafters of the tiny target, with the server's own memory encoder."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import Device, Drafting
from moa_client.device.loading import Target as HeldTarget
from moa_client.drafting.drafters import LookupDrafter, MoaDrafter
from moa_server.drafting.draft_decision import MemorySource
from moa_server.engine.stepper import Stepper
from moa_server.verifier import Target
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds.moa_decoder import DraftState
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.drafting.growing import CHAIN, GrowthShape
from moa_shared.protocol.messages import Plane

from tests.net.server_peer import IDENTITY, LAYERS, MODEL
from tests.support.decoders import decoder_of
from tests.support.tiny_models import SIZES, save_drafter, save_tiny_model, small_drafter

DRAFTERS = ("none", "lookup", "random", "chain", "tree", "chain of N = 1", "tree of N = 1")


def checkpoint(reused_layers: int, *, near: bool = False) -> Checkpoint:
    """A random drafter of the tiny target; with `near` its self-attention is the target's first layer, so that
    some of its guesses are right.
    """
    config = small_drafter(sa_mlp=96, ca_mlp=96, rms_norm_eps=1e-6, reused_layers=reused_layers)
    tensors = fresh_tensors(config, seed=1)
    if near:
        for prefix, layer in (("self_attention.", "model.layers.0."), ("cross_attention.", "model.layers.1.")):
            found = {name: tensor for name, tensor in MODEL.tensors.items() if name.startswith(layer)}
            tensors |= {prefix + name.removeprefix(layer): tensor for name, tensor in found.items()}
    return Checkpoint(config, tensors, "64" * 32)


def stepper(target: Target, reused_layers: int) -> Stepper:
    """The server's side of that drafter."""
    made = checkpoint(reused_layers)
    layer = LAYERS - reused_layers if reused_layers else None
    rows, fingerprint = target.memory_rows(made), bytes.fromhex(made.fingerprint)
    return Stepper(target, [MemorySource(rows, made.config.memory_width, layer, fingerprint=fingerprint)])


@dataclass(frozen=True)
class Source:
    """A tiny model and a drafter of it on disk, for tests that fetch them."""

    model: Path
    drafter: Path


def make_source(folder: Path, *, reused_layers: int = 0, tied: bool = False) -> Source:
    """Random weights."""
    template = "{% for m in messages %}w4 {{ m.content }} w2 {% endfor %}w5 "
    sizes: dict[str, Any] = {"max_position_embeddings": 256, "tie_word_embeddings": tied}
    model = save_tiny_model(folder / "model", template=template, seed=1, **sizes)
    return Source(model, save_drafter(folder / "drafter.safetensors", small_drafter(reused_layers=reused_layers)))


def without_drafter(identity: pb.Identity = IDENTITY, **fields: Any) -> Device:
    """A device that holds nothing but what the server is."""
    mine = pb.Identity()
    mine.CopyFrom(identity)
    mine.drafter_fingerprint = b""
    return Device(replace(HeldTarget(cast(Any, None), cast(Any, None), mine), **fields))


def device(target: Target, name: str) -> Device:
    """A device whose drafter is one of DRAFTERS."""
    held = without_drafter()
    if name == "none":
        return held
    if name == "lookup":
        return replace(held, drafting=Drafting(lambda: LookupDrafter(4)))
    reused_layers, tree = int(name.endswith("N = 1")), name.startswith("tree")
    made = checkpoint(reused_layers, near=name != "random")
    decoder = decoder_of(made, ArrayWeights(MODEL.tensors), "float32")

    def new_drafter() -> MoaDrafter:
        shape = GrowthShape(breadth=3, survival=0.0) if tree else CHAIN
        return MoaDrafter(lambda: DraftState(decoder), reads_memory=name != "random", shape=shape)

    if name == "random":
        return replace(held, drafting=Drafting(new_drafter))
    planes = {Plane.REUSED_STATE: SIZES["hidden_size"]} if reused_layers else {}
    planes[Plane.MEMORY] = made.config.memory_width
    return replace(held, drafting=Drafting(new_drafter, IDENTITY.drafter_fingerprint, planes))
