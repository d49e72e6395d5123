"""Loads a target in torch: on which device, and with which library's attention."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import structlog
import torch
from moa_shared.defaults import BF16
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles, load_target_model
from moa_shared.models.network.served import torch_plan
from moa_shared.programs.entry import install_extra
from moa_shared.programs.progress import Progress

from moa_server.settings import ServerSettings
from moa_server.verifier.attention import Attention, AttentionShape, SessionAttention
from moa_server.verifier.group import Group, LeaderTarget
from moa_server.verifier.rank import check_shares
from moa_server.verifier.torch_target import TorchTarget, attention_shape, free_kv_bytes

log = structlog.get_logger()

CUDA = "cuda"
FLASH_INFER = "flashinfer"
FLASH_INFER_HEADS = (64, 128, 256)  # its kernels' head dimensions
WARM_ROWS = (1, 2, 4, 8, 16, 32, 64)  # forwards whose graphs are recorded before the first client comes


def choose_device(named: str, level: str) -> str:
    """Where a level is computed. `named`: auto, cpu or cuda; auto: bf16 on CUDA where torch sees it."""
    sees = torch.cuda.is_available()
    if named == CUDA and not sees:
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "no device is visible to it"
        raise ConfigError(
            f"Torch sees no CUDA device: {reason}.",
            hint="Install torch with CUDA and check nvidia-smi, or give --device cpu.",
        )
    if named == "auto":
        return CUDA if sees and level == BF16 else "cpu"
    return named


def choose_attention(dtype: torch.dtype, head_dim: int, shape: AttentionShape) -> type[Attention]:
    """The library for CUDA: FlashInfer if it is installed and computes this, else torch's own attention."""
    if find_spec(FLASH_INFER) is None:
        reason = f"flashinfer is not installed: {install_extra('cuda')}"
    elif dtype != torch.bfloat16:
        reason = "FlashInfer does not compute in float32"
    elif head_dim not in FLASH_INFER_HEADS:
        reason = f"FlashInfer has no kernels for heads of {head_dim}"
    elif not shape.is_plain:
        reason = "FlashInfer computes neither sliding windows nor caps of scores here"
    else:
        from moa_server.verifier.attention import FlashInferAttention

        return FlashInferAttention
    log.info("attention by torch, one conversation after the other", reason=reason)
    return SessionAttention


def load_torch_target(
    files: ModelFiles, settings: ServerSettings, level: str, progress: Progress, group: Group | None = None
) -> TorchTarget:
    """The target on one of torch's levels.

    `group`: processes that share it; all load it. None: this one has it for itself.
    """
    device = choose_device(settings.device, level)
    shares = group.rank.count if group is not None else 1
    check_shares(files.config, files.target_id, shares)
    if shares > 1 and device != CUDA and torch.cuda.is_available():
        raise ConfigError(
            "Processes that share a target compute on the GPUs that torch sees.",
            hint="Hide them with CUDA_VISIBLE_DEVICES= to share it on the CPU.",
        )
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
        raise ConfigError(
            f"{files.target_id} does not fit into the memory of {torch.cuda.get_device_name()}.",
            hint="Serve a smaller model, or give --device cpu.",
        ) from error
    # Partial sums are added in float32: closer, and less dependent on how a product is split.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    config = model.config
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    attends = choose_attention(model.dtype, head_dim, attention_shape(torch_plan(config.to_dict())))
    record = CudaGraphs().record if attends.has_graphs else None
    target = make(model, context_length, kv_bytes=kv_bytes, attends=attends, fills=True, record=record)
    if group is None or group.rank.number == 0:  # followers run these as they come
        with progress.task("Recording forwards"):
            warm_up(target)
    return target


def warm_up(target: TorchTarget) -> None:
    """Runs a forward of each common shape, which compiles and records what the first client would wait for."""
    for rows in WARM_ROWS:
        if rows <= target.context_length:
            cache = target.new_cache()
            target.forward(cache, [0] * rows)
            cache.release()


T = TypeVar("T")


class CudaGraphs:
    """Records graphs."""

    def __init__(self) -> None:
        self._memory: Any = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Runs a function once and records it; gives what plays it again, and the tensors that it then writes."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # what is compiled or allocated at the first call must not be recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            written = run()
        return graph.replay, written
