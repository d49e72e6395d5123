"""Multi-token-prediction heads, wherever a model has them: their drafts are transformers' own."""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from moa_kernels import Segment
from moa_shared.drafter.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.published import find_drafter
from moa_shared.drafting.drafts import ConversationDrafter
from moa_shared.errors import CheckpointError, ModelSourceError, NotFoundError
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.models.network.families import FAMILIES
from moa_shared.models.network.network import Network
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from tests.support.families import tiny_dense, tiny_mixture
from tests.support.family_gguf import write_family_gguf
from tests.support.tiny_models import SIZES, save_tokenizer, small_drafter
from tests.support.torch_models import bare, draw_weights, torch_model

pytestmark = pytest.mark.torch
LAYERS = SIZES["num_hidden_layers"]
TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(24)]
ROPE = {"rope_type": "default", "rope_theta": 500.0}
Tensors = dict[str, torch.Tensor]


class Made(NamedTuple):
    """A model, its heads in transformers, and both in one: the heads' blocks are layers behind the model's own."""

    model: Any
    layers: int
    heads: Any
    whole: PreTrainedModel
    extra: Tensors  # what a head has besides its block, by DeepSeek's and GLM's names

    @property
    def tensors(self) -> Tensors:
        return {**self.whole.state_dict(), **self.extra}


@cache
@torch.no_grad()
def made(family: str, heads: int = 1, *, hidden_first: bool = False) -> Made:
    torch.manual_seed(5)
    mixture = partial(tiny_mixture, mlp_only_layers=[])
    tiny: Any = {"qwen 3.5": tiny_dense, "qwen 3 next": mixture}.get(family, partial(torch_model, rope_parameters=ROPE))
    model: Any = tiny(family)
    config = model.config
    layers, kinds = config.num_hidden_layers, getattr(config, "layer_types", None)
    more = {} if kinds is None else {"layer_types": [*kinds, *["full_attention"] * heads]}
    whole = tiny(family, num_hidden_layers=layers + heads, **more)
    model.load_state_dict({name: whole.state_dict()[name] for name in model.state_dict()})
    config.num_mtp_layers, config.mtp_hidden_states_first = heads, hidden_first
    config.mtp_layer_types = ["full_attention"] * heads if kinds else None
    theirs = MtpModel(model, heads).eval()
    draw_weights(theirs.layers)
    names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm"}
    extra = Tensors()
    for number, layer in enumerate(theirs.layers, layers):
        layer.mtp_block.load_state_dict(whole.model.layers[number].state_dict())
        extra |= {f"model.layers.{number}.{ours}.weight": getattr(layer, name).weight for name, ours in names.items()}
    return Made(model, layers, theirs, whole, extra)


@torch.no_grad()
def reference(of: Made, text: list[int], length: int) -> tuple[list[int], np.ndarray]:
    """The tokens that transformers' heads draft after a text, and their logits; the last head goes on by its own state."""
    states = of.model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1]
    cache, count = MtpCache(config=of.model.config.get_mtp_config()), of.model.config.num_mtp_layers
    tokens, logits = torch.tensor([text[1:]]), []
    for step in range(length):
        positions = torch.arange(len(text) + step - tokens.shape[1], len(text) + step)[None]
        states = of.heads.forward_layer(min(step, count - 1), states, positions, cache, input_ids=tokens)
        logits.append(of.model.lm_head(states[0, -1]))
        tokens = torch.cat((tokens[:, 1:], logits[-1].argmax()[None, None]), dim=-1)
        if step >= count - 1:  # only the newest row is new
            tokens, states = tokens[:, -1:], states[:, -1:]
    return [int(each.argmax()) for each in logits], torch.stack(logits).numpy()


def drafted(state: ConversationDrafter, length: int) -> tuple[list[int], np.ndarray]:
    rows = [state.begin()[0]]
    tokens = [int(rows[0].argmax())]
    for parent in range(-1, length - 2):
        rows.append(state.expand(tokens[-1:], [parent])[0])
        tokens.append(int(rows[-1].argmax()))
    return tokens, np.stack(rows)


def feed(state: ConversationDrafter, checkpoint: Checkpoint, of: Made, text: list[int]) -> None:
    """The rows of the text's tokens but the last, and those tokens of it that are new."""
    with torch.no_grad():
        states = of.model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1][0].numpy()
    state.append_memory(0, checkpoint.rows("float32")(states))
    state.extend(text[state.next_position :])


def check_drafts(checkpoint: Checkpoint, files: ModelFiles, of: Made) -> None:
    length = 4 if checkpoint.config.own_layers == 1 else checkpoint.config.own_layers
    target: Any = WeightReader(files)
    state = checkpoint.states(target, "float32")()
    for known in (9, 10, 14, len(TEXT)):  # verdicts of one and more tokens drop the drafts' rows
        feed(state, checkpoint, of, TEXT[:known])
        tokens, logits = drafted(state, length)
        expected, theirs = reference(of, TEXT[:known], length)
        assert tokens == expected
        np.testing.assert_allclose(logits, theirs, rtol=0, atol=1e-4)


MODULES = ("eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.norm.weight")
QWEN = dict(zip(MODULES, ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), strict=True))
MIMO = dict(zip(MODULES, ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"), strict=True))
COPIES = ("embed_tokens.weight", "shared_head.head.weight")


def placed(name: str, layers: int, layout: str) -> str:
    """The name of a head's tensor in a folder like GLM's, Qwen's or MiMo's."""
    _, _, number, rest = name.split(".", 3)
    if layout == "qwen":
        return f"mtp.{QWEN[rest]}.weight" if rest in QWEN else f"mtp.layers.{int(number) - layers}.{rest}"
    within = f"{MIMO[rest]}.weight" if rest in MIMO else rest
    return f"model.mtp_layers.{int(number) - layers}.{within}" if layout == "mimo" else name


def save(
    folder: Path, of: Made, layout: str = "glm", changes: Mapping[str, torch.Tensor | None] = MappingProxyType({})
) -> ModelFiles:
    """The model with its heads in a folder. `changes`: to the heads' tensors; None takes one out."""
    of.model.config.save_pretrained(folder)
    save_tokenizer(folder)
    own = of.model.state_dict().keys()
    copies = {placed(f"model.layers.{of.layers}.{name}", of.layers, layout): torch.ones(97, 64) for name in COPIES}
    tensors = {name if name in own else placed(name, of.layers, layout): each for name, each in of.tensors.items()}
    merged: Mapping[str, torch.Tensor | None] = copies | tensors | dict(changes)
    kept = {name: each.clone() for name, each in merged.items() if each is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return resolve(str(folder))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("family", "layout", "heads", "hidden_first"),
    [
        *(("qwen3", "glm", 1, False), ("llama", "glm", 3, False), ("qwen3", "qwen", 1, True)),
        *(("qwen2", "mimo", 2, True), ("qwen 3.5", "qwen", 1, False), ("qwen 3 next", "qwen", 1, False)),
    ],
)
def test_heads_in_a_folder_draft_as_transformers_does(
    tmp_path: Path, family: str, layout: str, heads: int, hidden_first: bool
) -> None:
    of = made(family, heads, hidden_first=hidden_first)
    files = save(tmp_path / "model", of, layout)
    checkpoint = load_checkpoint(find_drafter("mtp", files))
    assert (checkpoint.config.own_layers, checkpoint.config.hidden_first) == (heads, hidden_first)
    check_drafts(checkpoint, files, of)


def write(
    path: Path, of: Made, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32, *, alone: bool = False
) -> Path:
    """The model with its heads in a GGUF file; `alone`: the heads without it."""
    heads, own = of.model.config.num_mtp_layers, dict[str, Any]()
    for name, tensor in of.extra.items():
        _, _, number, rest = name.split(".", 3)
        added = FAMILIES[of.model.config.model_type].norm_offset if "norm" in rest else 0.0
        own[f"blk.{number}.nextn.{rest.replace('head.', 'head_')}"] = tensor.detach().numpy() + added
    keys: dict[str, Any] = {**own, "nextn_predict_layers": heads}
    path.parent.mkdir(exist_ok=True)
    write_family_gguf(of.whole, path, kind, **keys)
    if alone:
        names = (tensor.name for tensor in gguf.GGUFReader(path).tensors)
        blocks = tuple(f"blk.{head}." for head in range(of.layers, of.layers + heads))
        write_family_gguf(of.whole, path, kind, **dict.fromkeys(n for n in names if not n.startswith(blocks)), **keys)
    return path


@pytest.mark.parametrize(
    ("family", "heads", "beside"),
    [("llama", 2, False), ("qwen3", 1, True), ("qwen 3.5", 1, False), ("qwen 3 next", 1, True)],
)
def test_heads_in_a_gguf_file_or_next_to_it(tmp_path: Path, family: str, heads: int, beside: bool) -> None:
    of = made(family, heads)
    path = tmp_path / "models" / "tiny.gguf"
    if beside:
        write(path.with_name("mtp-tiny-F32.gguf"), of, alone=True)
        write(path.with_name("mtp-another.gguf"), made("qwen2"), alone=True)  # which is passed over
        write_family_gguf(of.model, path)
    else:
        write(path, of)
    files = resolve(str(path))
    network = Network(WeightReader(files), files.config, plain=True)
    segment = Segment.chain(network.new_cache(kv="f32"), len(TEXT), 0)
    logits, *_ = network.forward(TEXT, [segment], range(len(TEXT)))
    np.testing.assert_allclose(logits, bare(of.model, TEXT), rtol=0, atol=3e-4)  # the model is computed without them
    checkpoint = load_checkpoint(find_drafter("mtp", files))
    check_drafts(checkpoint, files, of)
    if beside:
        assert find_drafter(str(path.with_name("mtp-tiny-F32.gguf")), files).is_file()
        with pytest.raises(
            CheckpointError, match=r"mtp-another.gguf is a head of the family qwen2, tiny is of another"
        ):
            find_drafter(str(path.with_name("mtp-another.gguf")), files)


def test_packed_weights_are_kept_in_float16(tmp_path: Path) -> None:
    of = made("qwen3")
    files = resolve(str(write(tmp_path / "models" / "tiny.gguf", of, gguf.GGMLQuantizationType.Q8_0)))
    checkpoint = load_checkpoint(find_drafter("mtp", files))
    for name in ("layers.0.eh_proj.weight", "layers.0.mlp.up_proj.weight"):
        stored = of.tensors[name.replace("layers.0.", f"model.layers.{LAYERS}.")].detach().numpy()
        np.testing.assert_allclose(checkpoint.tensors[name], stored, rtol=0, atol=0.004 * np.abs(stored).max())


BLOCK = f"model.layers.{LAYERS}"
UP = f"{BLOCK}.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{BLOCK}.self_attn.q_norm.weight": torch.ones(32)}, r"q_norm.weight has the shape \[32\], model needs none"),
        (
            {UP: None},
            r"blocks of another family: layers.0.mlp.up_proj.weight has none, model needs the shape \[96, 64\]",
        ),
        ({UP: torch.ones(128, 64)}, r"has the shape \[128, 64\], model needs the shape \[96, 64\]"),
        ({f"{BLOCK}.eh_proj.weight": torch.ones(32, 64)}, "is for a target whose hidden_size is 32, model has 64"),
        ({UP: torch.full((96, 64), torch.nan)}, "numbers that are not finite"),
        ({f"{BLOCK}.mtp_only.weight": torch.ones(2)}, "layers.0.mtp_only.weight has the shape"),
    ],
)
def test_blocks_of_another_family_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    files = save(tmp_path / "model", made("llama"), changes=changes)
    with pytest.raises((CheckpointError, ModelSourceError), match=message):
        find_drafter("mtp", files)


def test_a_model_without_a_head(tmp_path: Path) -> None:
    files = save(tmp_path / "model", made("llama"), changes=dict.fromkeys(made("llama").extra))
    with pytest.raises(NotFoundError, match="model has no multi-token-prediction head"):
        find_drafter("mtp", files)


@pytest.mark.parametrize("wrong", [{"own_layers": 17}, {"experts": (2000, 32, 0)}, {"experts": (4, 32)}])
def test_numbers_of_heads_and_experts_are_bounded(wrong: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"at most 16 heads|experts must be a number up to 1024"):
        small_drafter(kind="mtp", **wrong)
