"""Headers and configurations with values that make no sense: each is refused with a sentence, or computed."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from moa_kernels import KernelError
from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf_configuration import make_config
from moa_shared.models.network.plan import plan_of
from moa_shared.models.network.served import check_family
from moa_shared.models.storage.gguf_header import GgufHeader, read_header
from transformers import PreTrainedModel

from tests.support.families import DENSE_FAMILIES, GGUF_FAMILIES, MIXTURES, tiny_dense, tiny_in_gguf, tiny_mixture
from tests.support.family_gguf import write_family_gguf

pytestmark = pytest.mark.torch

ODD: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 255, 2**31, 2**64, 0.0, -0.0, 1.5, -2.5, 1e-45, 1e38, 1e300, float("inf"), float("nan"), "", "x",
    "yarn", "linear", "longrope", "llama3", "none", True, False, None, [], [0], [1, 0, 1], ["sliding_attention"] * 3,
    ["x"], [float("nan")] * 16, [0.0] * 16, {}, {"factor": 0}, {"full_attention": {}}, {"rope_type": []},
)  # fmt: skip
MIXTURE = "mixture, "  # how those of experts are told apart here
MIXTURES_IN_GGUF = tuple(MIXTURE + family for family in ("qwen 3", "mixtral", "olmoe", "gpt-oss"))
FEW, MANY = 150, 1300


def plan_if_accepted(config: Mapping[str, Any]) -> None:
    with suppress(KernelError):  # which the network says as a ModelSourceError
        plan_of(config)


def tiny(family: str) -> PreTrainedModel:
    """A model with experts or without."""
    mixture = family.removeprefix(MIXTURE)
    return tiny_dense(family) if mixture == family else tiny_mixture(mixture)


def in_file(family: str, path: Path) -> Path:
    """The family's tiny model in GGUF."""
    if family.startswith(MIXTURE):
        return write_family_gguf(tiny(family), path)
    return write_family_gguf(tiny_in_gguf(family), path)


def mutated(values: Mapping[str, Any], random: Random) -> dict[str, Any]:
    changed = dict(values)
    for key in random.sample(sorted(changed), min(random.choice((1, 1, 2)), len(changed))):
        inner = changed[key]
        if isinstance(inner, Mapping) and inner and random.random() < 0.7:
            changed[key] = mutated(inner, random)
        else:
            changed[key] = random.choice(ODD)
    return changed


def check_config(family: str, count: int) -> None:
    config, random = tiny(family).config.to_dict(), Random(family)
    refused = 0
    for _ in range(count):
        try:
            changed = mutated(config, random)
            check_family(changed, "it")
        except ModelSourceError:
            refused += 1
            continue
        try:
            plan_if_accepted(changed)
        except Exception as error:
            wrong = {key: value for key, value in changed.items() if value is not config[key]}
            raise AssertionError(f"{wrong}: {error!r}") from error
    assert refused > count // 20


def check_header(family: str, path: Path, count: int) -> None:
    header, random = read_header(in_file(family, path)), Random(family)
    architecture = f"{header.architecture}."
    keys = {key: value for key, value in header.metadata.items() if not key.startswith("general.")}
    arrays = {key for key, value in keys.items() if isinstance(value, list)}
    own = {key: value for key, value in keys.items() if key.startswith(architecture) or key not in arrays}
    refused = 0
    for _ in range(count):
        changed = replace(header, metadata={**header.metadata, **in_gguf(mutated(own, random))})
        if random.random() < 0.3:
            changed = with_other_tensors(changed, random)
        try:
            config = make_config(changed)
        except ModelSourceError:
            refused += 1
            continue
        plan_if_accepted(config)
    assert refused > count // 8


def in_gguf(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values that a header can hold."""
    return {key: value for key, value in values.items() if value is not None and not isinstance(value, dict)}


def with_other_tensors(header: GgufHeader, random: Random) -> GgufHeader:
    """One tensor lacks, has another name, or another shape."""
    tensors = dict(header.tensors)
    name = random.choice(sorted(tensors))
    entry = tensors.pop(name)
    if random.random() < 0.4:
        tensors[random.choice((name + "x", "blk.9." + name, "blk.0.attn_q.bias"))] = entry
    elif random.random() < 0.5:
        tensors[name] = replace(entry, shape=random.choice(((1,), (0, 0), entry.shape[::-1], (*entry.shape, 1))))
    return replace(header, tensors=tensors)


@pytest.mark.parametrize("family", [*DENSE_FAMILIES, *(MIXTURE + family for family in MIXTURES)])
def test_configurations(family: str) -> None:
    check_config(family, FEW)


@pytest.mark.parametrize("family", [*GGUF_FAMILIES, *MIXTURES_IN_GGUF])
def test_headers(family: str, tmp_path: Path) -> None:
    check_header(family, tmp_path / "tiny.gguf", FEW)


@pytest.mark.long
@pytest.mark.parametrize("family", [*GGUF_FAMILIES, *MIXTURES_IN_GGUF])
def test_many_headers_and_configurations(family: str, tmp_path: Path) -> None:
    check_header(family, tmp_path / "tiny.gguf", MANY)
    check_config(family, MANY)
