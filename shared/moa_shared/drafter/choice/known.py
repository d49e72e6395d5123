"""The published drafters that moa knows, and for which model each was trained. Pure.

Each entry was seen on the page that it names; what a page does not say, such as a licence, is left empty. A newer one
need not be here: `--drafter` takes any id. docs/drafters.md has the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from moa_shared.drafter.published.named_target import model_key


class Kind(Enum):
    """What a drafter is, the most promising kind first; the values are those of a checkpoint's configuration.

    The order is that of published tokens a forward: on MT-bench Qwen3-8B has 4.24 with DFlash and 3.26 with EAGLE-3;
    Llama-3-8B has 4.2 to 4.8 with Mixture of Attentions and 3.43 with EAGLE-2.
    """

    DFLASH = "dflash"
    DSPARK = "dspark"
    MOA = "moa"
    EAGLE3 = "eagle3"
    PEAGLE = "peagle"
    EAGLE2 = "eagle2"

    @property
    def label(self) -> str:
        """Its name for people."""
        return _LABELS[self]

    @property
    def is_converted(self) -> bool:
        """Whether this version of moa makes a checkpoint of its own from one of this kind."""
        return self is not Kind.PEAGLE

    @property
    def rank(self) -> int:
        """Its place in the order; 0 is the first."""
        return list(Kind).index(self)


_LABELS = {
    Kind.DFLASH: "DFlash",
    Kind.DSPARK: "DSpark",
    Kind.MOA: "Mixture of Attentions",
    Kind.EAGLE3: "EAGLE-3",
    Kind.PEAGLE: "P-EAGLE",
    Kind.EAGLE2: "EAGLE-2",
}


@dataclass(frozen=True, slots=True)
class KnownTarget:
    """A model for which there are drafters.

    Args:
        size: weights, as its name says.
        hub_id: its own.
        hidden, layers, vocab: of its config.json.
    """

    family: str
    size: str
    hub_id: str
    hidden: int
    layers: int
    vocab: int

    def has_sizes_of(self, config: Mapping[str, Any]) -> bool:
        """Whether a config.json has the same sizes."""
        sizes = (config.get("hidden_size"), config.get("num_hidden_layers"), config.get("vocab_size"))
        return sizes == (self.hidden, self.layers, self.vocab)


@dataclass(frozen=True, slots=True)
class KnownDrafter:
    """A published drafter.

    Args:
        licence: as its page says; "": the page that was seen does not say.
        seen: the page that names it.
    """

    target: KnownTarget
    hub_id: str
    kind: Kind
    licence: str
    seen: str


_LLAMA_2_7B = KnownTarget("Llama 2", "7B", "meta-llama/Llama-2-7b-chat-hf", 4096, 32, 32000)
_LLAMA_2_13B = KnownTarget("Llama 2", "13B", "meta-llama/Llama-2-13b-chat-hf", 5120, 40, 32000)
_LLAMA_2_70B = KnownTarget("Llama 2", "70B", "meta-llama/Llama-2-70b-chat-hf", 8192, 80, 32000)
_VICUNA_7B = KnownTarget("Vicuna", "7B", "lmsys/vicuna-7b-v1.3", 4096, 32, 32000)
_VICUNA_13B = KnownTarget("Vicuna", "13B", "lmsys/vicuna-13b-v1.3", 5120, 40, 32000)
_VICUNA_33B = KnownTarget("Vicuna", "33B", "lmsys/vicuna-33b-v1.3", 6656, 60, 32000)
_LLAMA_3_8B = KnownTarget("Llama 3", "8B", "meta-llama/Meta-Llama-3-8B-Instruct", 4096, 32, 128256)
_LLAMA_3_70B = KnownTarget("Llama 3", "70B", "meta-llama/Meta-Llama-3-70B-Instruct", 8192, 80, 128256)
_LLAMA_31_8B = KnownTarget("Llama 3.1", "8B", "meta-llama/Llama-3.1-8B-Instruct", 4096, 32, 128256)
_LLAMA_33_70B = KnownTarget("Llama 3.3", "70B", "meta-llama/Llama-3.3-70B-Instruct", 8192, 80, 128256)
_R1_LLAMA_8B = KnownTarget("DeepSeek-R1", "8B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 4096, 32, 128256)
_QWEN2_7B = KnownTarget("Qwen2", "7B", "Qwen/Qwen2-7B-Instruct", 3584, 28, 152064)
_QWEN2_72B = KnownTarget("Qwen2", "72B", "Qwen/Qwen2-72B-Instruct", 8192, 80, 152064)
_QWEN3_2B = KnownTarget("Qwen3", "1.7B", "Qwen/Qwen3-1.7B", 2048, 28, 151936)
_QWEN3_4B = KnownTarget("Qwen3", "4B", "Qwen/Qwen3-4B", 2560, 36, 151936)
_QWEN3_8B = KnownTarget("Qwen3", "8B", "Qwen/Qwen3-8B", 4096, 36, 151936)
_QWEN3_14B = KnownTarget("Qwen3", "14B", "Qwen/Qwen3-14B", 5120, 40, 151936)
_QWEN3_32B = KnownTarget("Qwen3", "32B", "Qwen/Qwen3-32B", 5120, 64, 151936)
_QWEN3_MOE = KnownTarget("Qwen3", "30B-A3B", "Qwen/Qwen3-30B-A3B", 2048, 48, 151936)
_QWEN3_MOE_2507 = KnownTarget("Qwen3", "30B-A3B", "Qwen/Qwen3-30B-A3B-Instruct-2507", 2048, 48, 151936)
_QWEN3_CODER = KnownTarget("Qwen3-Coder", "30B-A3B", "Qwen/Qwen3-Coder-30B-A3B-Instruct", 2048, 48, 151936)

_HUB = "https://huggingface.co/"
_APACHE = "apache-2.0"
_EAGLE_LIST = f"{_HUB}yuhuili"
_EAGLE_README = "https://github.com/SafeAILab/EAGLE"
_SPECULATORS = "https://github.com/vllm-project/speculators"
_SPECFORGE = "https://docs.sglang.io/cookbook/specbundle/supported_models.md"
_ANGELSLIM = "https://github.com/Tencent/AngelSlim"
_DFLASH = "https://github.com/z-lab/dflash"
_DEEPSPEC = f"{_HUB}collections/deepseek-ai/deepspec"


def _own_page(target: KnownTarget, hub_id: str, kind: Kind, licence: str = "") -> KnownDrafter:
    return KnownDrafter(target, hub_id, kind, licence, f"{_HUB}{hub_id}")


# Of one target the better known first: where nothing else decides, the first one is taken.
KNOWN = (
    KnownDrafter(_LLAMA_2_7B, "yuhuili/EAGLE-llama2-chat-7B", Kind.EAGLE2, "", _EAGLE_README),
    KnownDrafter(_LLAMA_2_13B, "yuhuili/EAGLE-llama2-chat-13B", Kind.EAGLE2, "", _EAGLE_README),
    KnownDrafter(_LLAMA_2_70B, "yuhuili/EAGLE-llama2-chat-70B", Kind.EAGLE2, "", _EAGLE_README),
    KnownDrafter(_VICUNA_7B, "yuhuili/EAGLE-Vicuna-7B-v1.3", Kind.EAGLE2, "", _EAGLE_README),
    _own_page(_VICUNA_13B, "yuhuili/EAGLE3-Vicuna1.3-13B", Kind.EAGLE3, _APACHE),
    _own_page(_VICUNA_13B, "yuhuili/EAGLE-Vicuna-13B-v1.3", Kind.EAGLE2, _APACHE),
    _own_page(_VICUNA_33B, "yuhuili/EAGLE-Vicuna-33B-v1.3", Kind.EAGLE2, _APACHE),
    _own_page(_LLAMA_3_8B, "huawei-noah/MOASpec-Llama-3-8B-Instruct", Kind.MOA, "mit"),
    _own_page(_LLAMA_3_8B, "yuhuili/EAGLE-LLaMA3-Instruct-8B", Kind.EAGLE2),
    _own_page(_LLAMA_3_70B, "yuhuili/EAGLE-LLaMA3-Instruct-70B", Kind.EAGLE2, _APACHE),
    KnownDrafter(_LLAMA_31_8B, "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", Kind.DFLASH, "", _DFLASH),
    KnownDrafter(_LLAMA_31_8B, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", Kind.EAGLE3, "", _EAGLE_LIST),
    KnownDrafter(_LLAMA_31_8B, "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", Kind.EAGLE3, "", _SPECULATORS),
    KnownDrafter(_LLAMA_31_8B, "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge", Kind.EAGLE3, "", _SPECFORGE),
    KnownDrafter(_LLAMA_31_8B, "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", Kind.EAGLE2, "", _EAGLE_LIST),
    _own_page(_LLAMA_31_8B, "leptonai/EAGLE-Llama-3.1-8B-Instruct", Kind.EAGLE2, _APACHE),
    KnownDrafter(_LLAMA_33_70B, "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", Kind.EAGLE3, "", _EAGLE_LIST),
    KnownDrafter(_LLAMA_33_70B, "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3", Kind.EAGLE3, "", _SPECULATORS),
    _own_page(_LLAMA_33_70B, "lmsys/SGLang-EAGLE3-Llama-3.3-70B-Instruct-SpecForge", Kind.EAGLE3, "mit"),
    _own_page(_LLAMA_33_70B, "leptonai/EAGLE-Llama-3.3-70B-Instruct", Kind.EAGLE2, _APACHE),
    KnownDrafter(_R1_LLAMA_8B, "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B", Kind.EAGLE3, "", _EAGLE_LIST),
    KnownDrafter(_QWEN2_7B, "yuhuili/EAGLE-Qwen2-7B-Instruct", Kind.EAGLE2, "", _EAGLE_LIST),
    KnownDrafter(_QWEN2_72B, "yuhuili/EAGLE-Qwen2-72B-Instruct", Kind.EAGLE2, "", _EAGLE_LIST),
    KnownDrafter(_QWEN3_2B, "AngelSlim/Qwen3-1.7B_eagle3", Kind.EAGLE3, "", _ANGELSLIM),
    KnownDrafter(_QWEN3_4B, "z-lab/Qwen3-4B-DFlash-b16", Kind.DFLASH, "", _DFLASH),
    KnownDrafter(_QWEN3_4B, "deepseek-ai/dflash_qwen3_4b_block7", Kind.DFLASH, "", _DEEPSPEC),
    KnownDrafter(_QWEN3_4B, "deepseek-ai/dspark_qwen3_4b_block7", Kind.DSPARK, "", _DEEPSPEC),
    KnownDrafter(_QWEN3_4B, "AngelSlim/Qwen3-4B_eagle3", Kind.EAGLE3, "", _ANGELSLIM),
    KnownDrafter(_QWEN3_4B, "deepseek-ai/eagle3_qwen3_4b_ttt7", Kind.EAGLE3, "", _DEEPSPEC),
    KnownDrafter(_QWEN3_8B, "z-lab/Qwen3-8B-DFlash-b16", Kind.DFLASH, "", _DFLASH),
    _own_page(_QWEN3_8B, "RedHatAI/Qwen3-8B-speculator.dflash", Kind.DFLASH),
    KnownDrafter(_QWEN3_8B, "deepseek-ai/dflash_qwen3_8b_block7", Kind.DFLASH, "", _DEEPSPEC),
    KnownDrafter(_QWEN3_8B, "deepseek-ai/dspark_qwen3_8b_block7", Kind.DSPARK, "", _DEEPSPEC),
    KnownDrafter(_QWEN3_8B, "RedHatAI/Qwen3-8B-speculator.eagle3", Kind.EAGLE3, "", _SPECULATORS),
    KnownDrafter(_QWEN3_8B, "AngelSlim/Qwen3-8B_eagle3", Kind.EAGLE3, "", _ANGELSLIM),
    KnownDrafter(_QWEN3_8B, "deepseek-ai/eagle3_qwen3_8b_ttt7", Kind.EAGLE3, "", _DEEPSPEC),
    _own_page(_QWEN3_8B, "RedHatAI/Qwen3-8B-speculator.peagle", Kind.PEAGLE, _APACHE),
    KnownDrafter(_QWEN3_14B, "deepseek-ai/dflash_qwen3_14b_block7", Kind.DFLASH, "", _DEEPSPEC),
    KnownDrafter(_QWEN3_14B, "deepseek-ai/dspark_qwen3_14b_block7", Kind.DSPARK, "", _DEEPSPEC),
    KnownDrafter(_QWEN3_14B, "RedHatAI/Qwen3-14B-speculator.eagle3", Kind.EAGLE3, "", _SPECULATORS),
    KnownDrafter(_QWEN3_14B, "AngelSlim/Qwen3-14B_eagle3", Kind.EAGLE3, "", _ANGELSLIM),
    KnownDrafter(_QWEN3_14B, "deepseek-ai/eagle3_qwen3_14b_ttt7", Kind.EAGLE3, "", _DEEPSPEC),
    KnownDrafter(_QWEN3_32B, "RedHatAI/Qwen3-32B-speculator.eagle3", Kind.EAGLE3, "", _SPECULATORS),
    KnownDrafter(_QWEN3_32B, "AngelSlim/Qwen3-32B_eagle3", Kind.EAGLE3, "", _ANGELSLIM),
    KnownDrafter(_QWEN3_MOE, "AngelSlim/Qwen3-a3B_eagle3", Kind.EAGLE3, "", _ANGELSLIM),
    _own_page(_QWEN3_MOE_2507, "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.dflash", Kind.DFLASH),
    KnownDrafter(
        _QWEN3_MOE_2507, "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3", Kind.EAGLE3, "", _SPECULATORS
    ),
    KnownDrafter(
        _QWEN3_MOE_2507, "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex", Kind.EAGLE3, "", _SPECFORGE
    ),
    KnownDrafter(_QWEN3_CODER, "z-lab/Qwen3-Coder-30B-A3B-DFlash", Kind.DFLASH, "", _DFLASH),
    KnownDrafter(
        _QWEN3_CODER, "lmsys/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct-SpecForge", Kind.EAGLE3, "", _SPECFORGE
    ),
    _own_page(_QWEN3_CODER, "JinnP/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct", Kind.EAGLE3, _APACHE),
)


def known_for(names: Iterable[str], config: Mapping[str, Any] | None = None) -> tuple[KnownDrafter, ...]:
    """The drafters that were trained for a model, in the table's order.

    Args:
        names: of the model: its id, its file's.
        config: its config.json; where its sizes are other ones, it only has the name. None: not known.
    """
    keys = {model_key(name) for name in names}
    return tuple(
        each
        for each in KNOWN
        if model_key(each.target.hub_id) in keys and (config is None or each.target.has_sizes_of(config))
    )


def known_of_sizes(config: Mapping[str, Any]) -> tuple[KnownDrafter, ...]:
    """The drafters for models of these sizes."""
    return tuple(each for each in KNOWN if each.target.has_sizes_of(config))


def known_drafter(hub_id: str) -> KnownDrafter | None:
    """The entry of an id; None: there is none."""
    wanted = hub_id.partition("@")[0].casefold()
    return next((each for each in KNOWN if each.hub_id.casefold() == wanted), None)


def known_table() -> str:
    """The table for the documentation, a row for each target."""
    lines = ["| model | most promising | others |", "| --- | --- | --- |"]
    for target in dict.fromkeys(each.target for each in KNOWN):
        first, *others = sorted((each for each in KNOWN if each.target == target), key=lambda each: each.kind.rank)
        lines.append(
            f"| {target.family} {target.size}: {target.hub_id} | {_cell(first)} | {'; '.join(map(_cell, others))} |"
        )
    return "\n".join(lines)


def _cell(known: KnownDrafter) -> str:
    licence = f", {known.licence}" if known.licence else ""
    return f"[{known.hub_id}]({known.seen}) ({known.kind.label}{licence})"
