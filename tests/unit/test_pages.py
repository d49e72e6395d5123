"""Tables, options and figures of the pages against the programs and the formulas that they are of."""

import re
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from pathlib import Path

import pytest
from moa_client.commands.daemon import NOT_RUNNING
from moa_client.settings import ClientSettings
from moa_server.settings import ServerSettings
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.errors import CATALOGUE
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.config import settings_of
from moa_shared.protocol.memory_codec import Codec, row_bytes
from netsim.errors import NetsimError

DOCS = Path(__file__).resolve().parents[2] / "docs"
OURS, NETSIM = (
    (DOCS / page).read_text("utf-8").split("\n## Exit codes\n")[1].split("\n## ")[0]
    for page in ("client.md", "netsim.md")
)
WITHOUT_AN_ERROR = {0, 1, NOT_RUNNING, 128 + 1, 128 + 15}


def rows(text: str) -> dict[int, str]:
    """What follows the code in each row of a table."""
    return {int(code): rest for code, rest in re.findall(r"^\| (\d+) \|(.*)$", text, re.MULTILINE)}


def test_each_error_has_its_place_in_the_table() -> None:
    expected: defaultdict[int, set[str]] = defaultdict(set)
    for code, error in CATALOGUE.items():
        expected[error.exit_code].add(code)
    named = {code: set(re.findall(r"`(\w+)`", rest.split("|")[0])) for code, rest in rows(OURS).items()}
    assert {code: names for code, names in named.items() if names} == expected
    assert {code for code, names in named.items() if not names} == WITHOUT_AN_ERROR


def test_each_status_of_netsim_is_in_its_table() -> None:
    errors: list[type[NetsimError]] = [NetsimError, *NetsimError.__subclasses__()]
    assert set(rows(NETSIM)) == {0} | {error.exit_code for error in errors}


TEXT = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text("utf-8")
SERVER = {about.flag_of() for about in settings_of(ServerSettings).values()}
CLIENT = {about.flag_of() for about in settings_of(ClientSettings).values()}
PROTECTING = re.compile(r"--(tls|insecure|keys|metrics-(port|host))\b.*")


def test_every_option_that_it_names_exists_and_each_that_protects_is_named() -> None:
    named = set(re.findall(r"`(--[\w-]+)`", TEXT))
    assert named <= SERVER | CLIENT
    protecting = {flag for flag in SERVER if PROTECTING.match(flag)} | {"--tls", "--tls-ca"}
    assert protecting <= named


def test_by_default_nothing_is_open_and_nobody_shows_a_key() -> None:
    usual = ServerSettings()
    assert is_loopback(usual.host)
    assert is_loopback(usual.metrics_host)
    assert not usual.insecure
    assert not ClientSettings().insecure
    assert usual.keys_file is None


PAGE = Path(__file__).resolve().parents[2] / "docs" / "drafters.md"
BANDWIDTH, FLOPS, REACHED = 2.039e12, 312e12, 0.4  # of an A100, and the share of its arithmetic that is assumed
EAGER_S = 0.5e-3  # of a layer in transformers, assumed
SLOTS, ANSWER_TOKENS, TRAINED_TOKENS = 256, 15e6, 100e6
LAPTOP = 60e9  # bytes a second of memory, assumed
BATCH = 4 * 1024  # tokens of an update
DRAFT_VOCAB, REUSED, LSA_MLP = 16384, 3, 3072


@dataclass(frozen=True)
class Sizes:
    """From the model's config.json on the hub."""

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False

    @property
    def layer(self) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (2 * queries + 2 * keys + 3 * self.inner)

    @property
    def weights(self) -> int:
        return self.layers * self.layer + self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def kv_bytes(self) -> int:
        return 4 * self.layers * self.kv_heads * self.head_dim

    def drafter(self) -> DrafterConfig:
        return DrafterConfig(
            vocab_size=self.vocab, hidden_size=self.hidden, target_layers=self.layers, target_heads=self.heads,
            target_kv_heads=self.kv_heads, target_head_dim=self.head_dim, sa_kv_heads=self.kv_heads,
            sa_mlp=self.inner, ca_kv_heads=self.kv_heads, ca_mlp=self.inner, lsa_heads=2 * self.kv_heads,
            lsa_kv_heads=self.kv_heads, lsa_mlp=LSA_MLP, reused_layers=REUSED, draft_vocab=DRAFT_VOCAB,
        )  # fmt: skip


MODELS = {
    "SmolLM2-135M": Sizes(49152, 576, 1536, 30, 9, 3, 64, tied=True),
    "Qwen3-0.6B": Sizes(151936, 1024, 3072, 28, 16, 8, 128, tied=True),
    "Llama-3.2-1B": Sizes(128256, 2048, 8192, 16, 32, 8, 64, tied=True),
    "Llama-3.2-3B": Sizes(128256, 3072, 8192, 28, 24, 8, 128, tied=True),
    "Llama-3-8B": Sizes(128256, 4096, 14336, 32, 32, 8, 128),
    "Qwen3-14B": Sizes(151936, 5120, 17408, 40, 40, 8, 128),
    "Llama-3-70B": Sizes(128256, 8192, 28672, 80, 64, 8, 128),
}


def row(name: str, sizes: Sizes) -> str:
    """A line of the page's table."""
    config = sizes.drafter()
    counts = {each: prod(shape) for each, shape in config.shapes().items() if each != "draft_ids"}
    drafter, lsa = sum(counts.values()), sum(n for each, n in counts.items() if each.startswith("layer_self"))
    head = DRAFT_VOCAB * sizes.hidden
    width = config.kv_width
    activations = (
        2 * sizes.kv_bytes
        + 12 * 2 * sizes.layers * width * 0.25
        + 16 * DRAFT_VOCAB
        + 2 * (2 + REUSED) * (6 * sizes.hidden + 3 * sizes.inner)
    )
    memory = 2 * sizes.weights + 16 * drafter + BATCH * activations
    step_s = max(
        (2 * sizes.weights + SLOTS * 400 * sizes.kv_bytes) / BANDWIDTH, 2 * SLOTS * sizes.weights / (REACHED * FLOPS)
    )
    rewriting_s = ANSWER_TOKENS / SLOTS * (step_s + EAGER_S * sizes.layers)
    flops = (
        2 * sizes.weights + 6 * (drafter - lsa + head) + 3 * sizes.layers * lsa + 4 * REUSED * sizes.layer
    )  # of a trained token: forward of the target; all of the drafter; its memory encoder, a quarter of it backward
    training_s = TRAINED_TOKENS * flops / (REACHED * FLOPS)
    device = drafter - lsa - counts["Ekv2E.weight"] + REUSED * sizes.layer + head
    wire = row_bytes(Codec.INT4, config.memory_width) + row_bytes(Codec.INT4, sizes.hidden)
    cells = [
        name, f"{sizes.weights / 1e9:.1f}", f"{drafter / 1e6:.0f}", f"{memory / 1e9:.0f}", f"{rewriting_s / 3600:.1f}",
        f"{training_s / 3600:.1f}", f"{34 / 32 * device / 1e9:.2f}", f"{1e3 * 34 / 32 * device / LAPTOP:.0f}",
        f"{wire / 1e3:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", MODELS)
def test_the_table_is_what_its_formulas_give(name: str) -> None:
    assert row(name, MODELS[name]) in PAGE.read_text("utf-8")
