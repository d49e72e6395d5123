"""A target over transformers: the levels float32 (the reference) and bf16 (GPUs), on a CPU or on CUDA.

It runs transformers' own decoder layers over the rows of all conversations at once, which gives what a verification
needs and `model.forward` does not: ragged rows, a mask of ancestors, positions by depth, the state that enters a chosen
layer, and the head on chosen rows only. State: the model, not changed after the start; the pages of keys and values.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from threading import Lock
from typing import Any, cast

import structlog
import torch
from moa_shared.drafter.checkpoint import Checkpoint
from moa_shared.errors import ConfigError, InternalError
from moa_shared.models import ModelFiles, load_target_model
from moa_shared.models.network.families import EARLIEST
from moa_shared.models.network.plan import plan_of
from moa_shared.models.network.served import check_torch
from moa_shared.programs.entry import install_extra
from moa_shared.programs.machine import free_memory
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import BF16
from torch import nn
from transformers import PreTrainedModel

from moa_server.settings import ServerSettings
from moa_server.verifier.attention import (
    NAME,
    Attention,
    AttentionShape,
    FlashInferAttention,
    Forward,
    Record,
    RunLayers,
    SessionAttention,
    States,
    register,
)
from moa_server.verifier.group import REASON_SECONDS, Group
from moa_server.verifier.pool import (
    BatchPart,
    PagedCache,
    PagePool,
    Run,
    as_array,
    bucket,
    in_order,
    lay_out,
    over_arrays,
)
from moa_server.verifier.target import KV_SHARE, KVCache, Request, Rows, Target, as_lsa_input, is_chain

log = structlog.get_logger()


class TorchTarget(Target):
    """The verifier in torch.

    `model`: a causal LM of a family that the torch levels compute, in evaluation mode. It is taken over: its attention
    becomes ours, and in bfloat16 on a CPU its weights are packed, after which it runs but cannot be saved. `kv_bytes`:
    0: a share of the device's free memory. `fills`: forwards are filled up to a power of two of rows, so that there are
    few shapes, which `record` may record. `shares`: processes that share the model, each with as many of its heads.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        context_length: int | None = None,
        *,
        kv_bytes: int = 0,
        attends: type[Attention] = SessionAttention,
        fills: bool = False,
        record: Record | None = None,
        shares: int = 1,
        make_pool: Callable[..., PagePool] = PagePool,
    ) -> None:
        config = model.config
        check_torch(config.to_dict(), type(model).__name__)
        register()
        model.set_attn_implementation(NAME)
        model.requires_grad_(False)
        self.model = model
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        parts = cast(Any, model)  # transformers' classes share these names but no type that has them
        self._norm: nn.Module = parts.model.norm
        self._head: nn.Module = parts.lm_head
        self._plan = plan = plan_of(config.to_dict())
        heads, hidden, layers = int(config.num_attention_heads), int(config.hidden_size), len(parts.model.layers)
        super().__init__(int(config.vocab_size), hidden, layers, int(config.max_position_embeddings), context_length)
        kv_heads = int(config.num_key_value_heads) // shares
        head_dim = int(getattr(config, "head_dim", None) or hidden // heads)
        kv_bytes = kv_bytes or free_kv_bytes(self.device)
        self.pool = make_pool(layers, kv_heads, head_dim, kv_bytes, self.dtype, self.device)
        attention = attends(self.pool, heads // shares, AttentionShape.of(plan))
        self._attention_name = attention.name
        self._forward = Forward(parts, plan, attention, self.context_length, record)
        self._fills = fills
        self._one_forward = Lock()  # at a time: they share what attention is prepared for, and the graphs

    @property
    def details(self) -> str:
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        return f"torch {torch.__version__} on {where}, {self._attention_name}"

    def new_cache(self) -> PagedCache:
        return PagedCache(self.pool)

    def kv_bytes(self) -> int:
        return self.pool.nbytes

    def lsa_inputs(self, spans: Sequence[tuple[KVCache, int, int]]) -> Rows:
        slots = [slot for cache, start, stop in spans for slot in _paged(cache).slots(start, stop)]
        return as_lsa_input(in_order(self.pool.read(slots)))

    def _run(
        self, requests: Sequence[Request], depths: Sequence[Sequence[int]], chosen: list[int], layers: list[int]
    ) -> tuple[Rows, Rows, Mapping[int, Rows]]:
        parts = []
        for request, of_request in zip(requests, depths, strict=True):
            cache, parents = _paged(request.cache), None if is_chain(request.parents) else request.parents
            parts.append(BatchPart(request.tokens, of_request, cache.length, cache.pages, parents))
        rows = 0
        if self._fills:
            rows = bucket(sum(len(part.tokens) for part in parts))
            chosen = chosen + [0] * (bucket(len(chosen)) - len(chosen)) if chosen else chosen
        return self.compute(Run(parts, rows, chosen, layers))

    def compute(self, run: Run) -> tuple[Rows, Rows, Mapping[int, Rows]]:
        """The layers over a forward's rows, and the head over those that were chosen; gives what `_run` gives."""
        batch = lay_out(run.parts, run.rows)
        with self._one_forward, torch.inference_mode():  # the latter is 4 % faster than no_grad on one core
            last, entering = self._forward.run(batch, run.layers)
            normed = self._norm(last[torch.tensor(run.chosen, dtype=torch.long, device=self.device)])
            logits = self._head(normed)
            if self._plan.logits_scale != 1:
                logits = logits * self._plan.logits_scale
            if cap := self._plan.logits_cap:
                logits = cap * torch.tanh(logits / cap)
            # The next forward overwrites the states of a graph.
            states = {layer: as_array(state.clone()) for layer, state in entering.items()}
            return as_array(logits), as_array(normed), states

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        return over_arrays(drafter.torch_rows(self.dtype, self.device), self.dtype, self.device)

    def normed(self, state: Rows) -> Rows:
        return over_arrays(self._norm, self.dtype, self.device)(state)


def free_kv_bytes(device: torch.device) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory().nbytes
    return int(KV_SHARE * free)


def _paged(cache: KVCache) -> PagedCache:
    if not isinstance(cache, PagedCache):
        raise InternalError("A forward of torch was given another backend's cache.")
    return cache


class LeaderPool(PagePool):
    """The pages of this rank's heads; what is read comes with the other ranks' heads, on the host."""

    def __init__(self, group: Group, *sizes: Any) -> None:
        super().__init__(*sizes)
        self._group = group

    def move(self, source: Sequence[int], to: Sequence[int]) -> None:
        move = super().move
        self._group.carry_out(("move", source, to), lambda: move(source, to))

    def read(self, slots: Sequence[int]) -> torch.Tensor:
        read = super().read
        return torch.cat(self._group.carry_out(("read", slots), lambda: self._group.gather(read(slots))), dim=3)


class LeaderTarget(TorchTarget):
    """The target on rank 0, whose forwards all ranks run; arguments besides `group` as of `TorchTarget`."""

    def __init__(self, group: Group, *args: Any, **options: Any) -> None:
        self._group = group
        super().__init__(*args, **options, shares=group.rank.count, make_pool=partial(LeaderPool, group))

    @property
    def details(self) -> str:
        return f"{super().details}, shared by {self._group.rank.count} processes"

    def compute(self, run: Run) -> tuple[Rows, Rows, Mapping[int, Rows]]:
        compute = super().compute
        return self._group.carry_out(("run", *run.fields()), lambda: compute(run))


def follow(target: Target, group: Group) -> None:
    """Follows rank 0 until the replica stops, with this rank's share of the target."""
    if not isinstance(target, TorchTarget):
        raise InternalError("A target that processes share is not one of torch.")
    for number in (signal.SIGTERM, signal.SIGINT):  # rank 0 drains, and needs its followers for that
        signal.signal(number, signal.SIG_IGN)
    log.info("following", rank=group.rank.number, processes=group.rank.count)
    try:
        carry_out_orders(target, group)
    except Exception as error:
        log.error("following failed", rank=group.rank.number, exc_info=error)
        group.watch.lose("This process could not do what rank 0 ordered.", REASON_SECONDS)  # ends it
    log.info("stopped", rank=group.rank.number)


def carry_out_orders(target: TorchTarget, group: Group) -> None:
    while True:
        match group.receive():
            case ["run", *fields]:
                target.compute(Run.of(*fields))
            case ["move", source, to]:
                target.pool.move(source, to)
            case ["read", slots]:
                group.gather(target.pool.read(slots))
            case _:
                group.watch.stop()
                return


CUDA = "cuda"
FLASH_INFER_HEADS = (64, 128, 256)  # its kernels' head dimensions
WARM_ROWS = (1, 2, 4, 8, 16, 32, 64)  # of forwards that are compiled and recorded before the first client comes


def choose_device(named: str, level: str) -> str:
    """Where a level is computed. `named`: auto, cpu or cuda; auto: bf16 on CUDA where torch sees it."""
    sees = torch.cuda.is_available()
    if named == CUDA and not sees:
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "no device is visible to it"
        hint = "Install torch with CUDA and check nvidia-smi, or give --device cpu."
        raise ConfigError(f"Torch sees no CUDA device: {reason}.", hint=hint)
    if named == "auto":
        return CUDA if sees and level == BF16 else "cpu"
    return named


def choose_attention(dtype: torch.dtype, head_dim: int, shape: AttentionShape) -> type[Attention]:
    """The library for CUDA: FlashInfer if it is installed and computes this, else torch's own attention."""
    if find_spec("flashinfer") is None:
        reason = f"flashinfer is not installed: {install_extra('cuda')}"
    elif dtype != torch.bfloat16:
        reason = "FlashInfer does not compute in float32"
    elif head_dim not in FLASH_INFER_HEADS:
        reason = f"FlashInfer has no kernels for heads of {head_dim}"
    elif not shape.is_plain:
        reason = "FlashInfer computes neither sliding windows nor caps of scores here"
    else:
        return FlashInferAttention
    log.info("attention by torch, one conversation after the other", reason=reason)
    return SessionAttention


def check_shares(config: Mapping[str, Any], name: str, count: int) -> None:
    """Checks that `count` processes can share a target evenly. `name`: of the target, for people."""
    if count > 1 and config["model_type"] not in EARLIEST:
        hint = "Serve it in one process, without torchrun."
        raise ConfigError(f"{name} is of the family {config['model_type']}, which processes do not share.", hint=hint)
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % count or kv_heads % count:
        said = f"{name} has {heads} heads and {kv_heads} of keys and values: {count} processes cannot share them."
        raise ConfigError(said, hint="Start as many processes as divide both, or serve it in one, without torchrun.")


def load_torch_target(
    files: ModelFiles, settings: ServerSettings, level: str, progress: Progress, group: Group | None = None
) -> TorchTarget:
    """The target on one of torch's levels. `group`: of processes that share it; all load it."""
    device = choose_device(settings.device, level)
    shares = group.rank.count if group is not None else 1
    check_shares(files.config, files.target_id, shares)
    if shares > 1 and device != CUDA and torch.cuda.is_available():
        hint = "Hide them with CUDA_VISIBLE_DEVICES= to share it on the CPU."
        raise ConfigError("Processes that share a target compute on the GPUs that torch sees.", hint=hint)
    with progress.task(f"Loading {files.target_id}"):
        model = load_target_model(files, torch.bfloat16 if level == BF16 else torch.float32, shares=shares)
    context_length = settings.context_length or None
    make: Callable[..., TorchTarget] = TorchTarget
    kv_bytes = settings.kv_bytes
    if group is not None:
        make = partial(LeaderTarget, group) if group.rank.number == 0 else partial(TorchTarget, shares=shares)
        sharers = 1 if device == CUDA else group.rank.local_count  # of the free memory that this process sees
        kv_bytes = group.least(kv_bytes or free_kv_bytes(model.device) // sharers)
    if device != CUDA:
        return make(model, context_length, kv_bytes=kv_bytes)
    try:
        if shares == 1:  # what is shared is where it belongs
            model.to(CUDA)
    except torch.OutOfMemoryError as error:
        said = f"{files.target_id} does not fit into the memory of {torch.cuda.get_device_name()}."
        raise ConfigError(said, hint="Serve a smaller model, or give --device cpu.") from error
    # Partial sums are added in float32: closer, and less dependent on how a product is split.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    config = model.config
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    attends = choose_attention(model.dtype, head_dim, AttentionShape.of(plan_of(config.to_dict())))
    record = cuda_graphs() if attends.has_graphs else None
    target = make(model, context_length, kv_bytes=kv_bytes, attends=attends, fills=True, record=record)
    if group is None or group.rank.number == 0:  # followers run these as they come
        with progress.task("Recording forwards"):
            warm_up(target)
    return target


def warm_up(target: TorchTarget) -> None:
    for rows in WARM_ROWS:
        if rows <= target.context_length:
            cache = target.new_cache()
            target.forward(cache, [0] * rows)
            cache.release()


def cuda_graphs() -> Record:
    """What records forwards as graphs, which share memory."""
    memory: Any = torch.cuda.graph_pool_handle()

    def record(run: RunLayers) -> tuple[Callable[[], None], States]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # what is compiled or allocated at the first call must not be recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
            written = run()
        return graph.replay, written

    return record
