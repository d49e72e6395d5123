"""How drafters are trained: a network, where what it reads of the target starts, and its losses; and the baselines.

Attention is a function of queries, keys, values and a mask, so that each user of a layer decides what is seen.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.torch_layers import TorchRotary, rotate
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.llama.modeling_llama import LlamaRMSNorm as RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from moa_training.data.batches import WHOLE, PackedBatch, RowShare
from moa_training.settings import FitSettings, LossSettings
from moa_training.teacher.teacher import Activations, Teacher

Turn = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of rotary positions
Mean = Callable[[torch.Tensor], torch.Tensor]  # of a value over all processes


def decoder_layer(
    width: int, heads: int, kv_heads: int, head_dim: int, inner: int, eps: float, head_norms: bool = False
) -> Any:
    """A layer in transformers' pieces, which have the authors' names; `head_norms`: as in Qwen3."""
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "rms_norm_eps": eps}
    sizes |= {"hidden_size": width, "intermediate_size": inner}
    return Qwen3DecoderLayer(Qwen3Config(**sizes), 0) if head_norms else LlamaDecoderLayer(LlamaConfig(**sizes), 0)


def heads_of(layer: Any, normed: torch.Tensor, part: str, turn: Turn | None = None) -> torch.Tensor:
    """Queries ("q"), keys or values of normed rows, [batch, heads, rows, head_dim]; turned by cosines and sines."""
    attention = layer.self_attn
    rows = getattr(attention, f"{part}_proj")(normed).unflatten(-1, (-1, attention.head_dim))
    if hasattr(attention, f"{part}_norm"):
        rows = getattr(attention, f"{part}_norm")(rows)
    rows = rows.transpose(1, 2)
    return rows if turn is None else rotate(rows, *turn)


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Grouped-query attention, [batch, rows, heads * head_dim].

    `queries`: [batch, heads, rows, head_dim]; keys and values: [batch, kv_heads, columns, head_dim]. `mask`: bool,
    [batch, 1, rows, columns], where a row sees a column.
    """
    # The queries that share a key are put together as rows, so that no key is copied: five times faster for one row.
    groups = queries.shape[1] // keys.shape[1]
    grouped = queries.reshape(*keys.shape[:2], -1, queries.shape[-1])
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask.repeat(1, 1, groups, 1))
    return out.reshape(*queries.shape).transpose(1, 2).flatten(-2)


def add_mlp(layer: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out


def finish(layer: Any, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """The part after attention: output projection and MLP, each with its residual."""
    return add_mlp(layer, residual + layer.self_attn.o_proj(attended))


def run_layer(
    layer: Any, x: torch.Tensor, visible: torch.Tensor, turn: Turn, source: torch.Tensor | None = None
) -> torch.Tensor:
    """What leaves a layer, which attends to the rows of `source`, or to its own."""
    normed = layer.input_layernorm(x)
    seen = normed if source is None else layer.input_layernorm(source)
    queries, keys = heads_of(layer, normed, "q", turn), heads_of(layer, seen, "k", turn)
    return finish(layer, x, attend(queries, keys, heads_of(layer, seen, "v"), visible[:, None]))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a drafter predicts for a batch, [batch, length, hidden] each."""

    feature: torch.Tensor  # what the head takes
    state: torch.Tensor | None  # predicted input of the first reused layer (None for N = 0)
    self_out: torch.Tensor  # what its first layer gives


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses, as scalars; `agreement` is the share of weighted positions whose argmax is the teacher's.

    `feature` and `state` are None where no features are predicted, or no layers reused.
    """

    total: torch.Tensor
    cross_entropy: torch.Tensor
    feature: torch.Tensor | None
    state: torch.Tensor | None
    agreement: torch.Tensor


def guess_losses(
    logits: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sums over guesses: cross-entropy with the teacher's distribution, and agreement of the first choices."""
    log_q = F.log_softmax(logits.float(), dim=-1)
    cross_entropy = -(weight * (teacher * log_q).sum(-1)).sum()
    return cross_entropy, (weight * (logits.argmax(-1) == teacher.argmax(-1))).sum()


def feature_losses(
    prediction: Prediction,
    target: Activations,
    head: torch.Tensor,
    weight: torch.Tensor,
    settings: LossSettings,
    is_start: torch.Tensor,
    mean: Mean = lambda own: own,
) -> Losses:
    """Losses over the positions that count; the head, of the draft vocabulary, is applied to those only.

    At block starts no prediction of the state is made. Sums of weights become their means over all processes: then the
    mean of all processes' losses is the loss of all their rows.
    """
    counted = weight > 0
    w = weight[counted]
    predicted = torch.where(is_start, 0.0, weight)
    sums = torch.stack((w.sum(), (weight if settings.count_starts else predicted).sum()))
    all_weight, all_predicted = mean(sums).clamp(min=1e-9)
    w = w / all_weight
    feature, truth = prediction.feature[counted], target.last_hidden[counted]
    with torch.no_grad():
        teacher = (truth @ head.t()).float().softmax(-1)
    cross_entropy, agreement = guess_losses(feature @ head.t(), teacher, w)
    feature_loss = (w * F.smooth_l1_loss(feature.float(), truth.float(), reduction="none").mean(-1)).sum()
    if prediction.state is None or target.state is None:
        total = settings.cross_entropy * cross_entropy + settings.feature * feature_loss
        return Losses(total, cross_entropy, feature_loss, None, agreement)
    error = F.smooth_l1_loss(prediction.state.float(), target.state.float(), reduction="none").mean(-1)
    state_loss = (predicted * error).sum() / all_predicted
    total = settings.cross_entropy * cross_entropy + settings.feature * 0.5 * (feature_loss + state_loss)
    return Losses(total, cross_entropy, feature_loss, state_loss, agreement)


# From a layer's number and how many tokens: activations of the target, and the states that enter the layer.
Sample = Callable[[int, int], tuple[Activations, torch.Tensor]]
_RIDGE = 1e-2  # of the mean square of the inputs; the regression's rows outnumber its columns by 5 or more


@dataclass(frozen=True, slots=True)
class Lesson:
    settings: FitSettings
    config: DrafterConfig
    teacher: Teacher
    draft_ids: torch.Tensor | None = None  # the tokens that the drafter can propose; None: all
    share: RowShare = WHOLE  # the rows that this process has of an update's
    mean: Mean = lambda own: own  # of a value over all processes

    @property
    def head(self) -> torch.Tensor:
        """The target's, of the tokens that the drafter can propose."""
        head = self.teacher.head
        return head if self.draft_ids is None else head[self.draft_ids.to(head.device).long()].contiguous()


@dataclass(frozen=True, slots=True)
class Update:
    batch: PackedBatch
    target: Activations
    spent: float  # of the budget, 0 to 1
    generator: torch.Generator  # of all that is drawn for it


class Objective(ABC):
    """How drafters are trained whose kind names this objective."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.head = lesson.head

    def fit_inputs(self, network: Any, sample: Sample) -> None:  # noqa: B027 - some read nothing
        """Starts what the drafter reads of the target near the state that its layer was made for."""

    @abstractmethod
    def network(self) -> nn.Module:
        """The network in its training form; its tensors are the checkpoint's."""

    @abstractmethod
    def losses(self, module: Callable[..., Any], update: Update) -> Losses:
        """The losses of an update, by the network, which may be wrapped for several processes."""


@torch.no_grad()
def fit_projection(projection: nn.Linear, rows: torch.Tensor, truth: torch.Tensor) -> None:
    """Brings a projection near the input of the layer that the drafter's begins as, by ridge regression."""
    rows, truth = (part.flatten(0, -2).double() for part in (rows, truth))
    identity = torch.eye(rows.shape[1], device=rows.device, dtype=torch.float64)
    if projection.bias is None:
        gram = rows.t() @ rows
        ridge = _RIDGE * gram.diagonal().mean() * identity
        projection.weight.copy_(torch.linalg.solve(gram + ridge, rows.t() @ truth).t())
        return
    mean, level = rows.mean(0), truth.mean(0)
    centred = rows - mean
    ridge = _RIDGE * centred.square().mean() * len(centred) * identity
    solution = torch.linalg.solve(centred.t() @ centred + ridge, centred.t() @ (truth - level))  # [inputs, hidden]
    projection.weight.copy_(solution.t())
    projection.bias.copy_(level - mean @ solution)


class TrainingBaseline(nn.Module):
    """EAGLE-2's layer and an independent small model as they are trained, each applied to whole rows.

    Aligned as the drafter: what is at position i is predicted from the tokens up to i, and compared with the target's
    feature there. `noise`: width of the uniform noise on EAGLE-2's features and embeddings while it trains.
    """

    def __init__(self, config: DrafterConfig, noise: float = 0.0, share: RowShare = WHOLE) -> None:
        super().__init__()
        hidden, heads, head_dim = config.hidden_size, config.target_heads, config.target_head_dim
        sizes = (hidden, heads, config.sa_kv_heads, head_dim, config.sa_mlp, config.rms_norm_eps)
        self._stack = layers = [decoder_layer(*sizes) for _ in config.traits.layers(config)]
        self._reads_target, self._noise, self._share = config.reads_last_hidden, noise, share
        if config.reads_last_hidden:
            self.spec_model = layers[0]
            self.spec_model_fc = nn.Linear(2 * hidden, hidden, bias=False)
        else:
            self.layers = nn.ModuleList(layers)
        self.output_norm = RMSNorm(hidden, config.rms_norm_eps) if config.output_norm else None
        self._rotary = TorchRotary(head_dim, config.rope_parameters)

    def forward(self, target: Activations, visible: torch.Tensor) -> Prediction:
        """Predictions at every position; EAGLE-2's at the first token of a conversation mean nothing."""
        x, positions = target.embeddings, target.positions
        if self._reads_target:
            before = target.last_hidden.roll(1, dims=1)
            if self._noise and self.training:
                x, before = (part + (self._drawn_for(part) - 0.5) * self._noise for part in (x, before))
            x = self.spec_model_fc(torch.cat((x, before), dim=-1))
            first = positions == 0  # has no feature before it: no row
            visible = visible & ~first[:, None, :] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
            positions = (positions - 1).clamp(min=0)
        cos, sin = (part[:, None] for part in self._rotary(positions, x.dtype))
        for layer in self._stack:
            x = run_layer(layer, x, visible, (cos, sin))
        return Prediction(x if self.output_norm is None else self.output_norm(x), None, x)

    def _drawn_for(self, rows: torch.Tensor) -> torch.Tensor:
        shape = (self._share.total(len(rows)), *rows.shape[1:])
        return self._share.own(torch.rand(shape, dtype=rows.dtype, device=rows.device))


class PositionsObjective(Objective):
    """Every position of the text, by distribution and feature."""

    def fit_inputs(self, network: TrainingBaseline, sample: Sample) -> None:
        config = self.lesson.config
        if config.reads_last_hidden:
            target, state = sample(config.target_layers - 1, 10 * config.hidden_size)
            rows, kept = torch.cat((target.embeddings, target.last_hidden.roll(1, dims=1)), -1), target.positions > 0
            fit_projection(network.spec_model_fc, rows[kept], state[kept])

    def network(self) -> TrainingBaseline:
        return TrainingBaseline(self.lesson.config, self.lesson.settings.drafter.eagle_noise, self.lesson.share)

    def losses(self, module: Callable[..., Any], update: Update) -> Losses:
        settings, batch, target = self.lesson.settings, update.batch, update.target
        taught = (batch.answer | settings.blocks.prompts) & (batch.positions > 0) & (batch.segment >= 0)
        prediction, no_start = module(target, batch.causal), torch.zeros_like(taught)
        mean = self.lesson.mean
        return feature_losses(prediction, target, self.head, taught.float(), settings.losses, no_start, mean)
