"""The cases: published figures of GPUs, models and devices, and what is assumed besides. Pure."""

from moa_bench.suites.scale.assumptions import Assumption, DraftDevice, Gpu, TargetSize, World

PRICES = "mercatus-ai.com/blog/cloud-gpu-pricing, May 2026: on demand, middle of specialised providers"
A100_SHEET, H100_SHEET = "NVIDIA A100 80GB SXM data sheet", "NVIDIA H100 SXM data sheet"
LLAMA = "meta-llama/Meta-Llama-3"


A100 = Gpu(
    "A100 80 GB",
    Assumption(2.039e12, "B/s", "published", A100_SHEET),
    Assumption(312e12, "FLOP/s", "published", A100_SHEET + ", bf16, dense"),
    Assumption(80e9, "B", "published", A100_SHEET),
    Assumption(1.30, "$ an hour", "published", PRICES),
)
H100 = Gpu(
    "H100 80 GB",
    Assumption(3.35e12, "B/s", "published", H100_SHEET),
    Assumption(989e12, "FLOP/s", "published", H100_SHEET + ", bf16, dense: half of the figure with sparsity"),
    Assumption(80e9, "B", "published", H100_SHEET),
    Assumption(3.00, "$ an hour", "published", PRICES),
)
LLAMA_8B = TargetSize(
    "Llama-3-8B",
    Assumption(8.03e9, "weights", "published", LLAMA + "-8B-Instruct, model card; bf16"),
    Assumption(131_072, "B", "derived", "its config: 2 x 32 layers x 8 heads x 128 x 2 B"),
    Assumption(32, "layers", "published", "its config"),
    Assumption(0.25e9, "weights", "published", "huawei-noah/MOASpec-Llama-3-8B-Instruct, model card"),
    Assumption(0.525e9, "weights", "derived", "its config: 128,256 x 4,096"),
    Assumption(
        576, "B", "derived", "2 x 4 x 128 numbers in int4 with a bf16 scale for each 32 (docs/architecture.md); N = 0"
    ),
)
LLAMA_70B = TargetSize(
    "Llama-3-70B",
    Assumption(70.6e9, "weights", "published", LLAMA + "-70B-Instruct, model card; bf16"),
    Assumption(327_680, "B", "derived", "its config: 2 x 80 layers x 8 heads x 128 x 2 B"),
    Assumption(80, "layers", "published", "its config"),
    Assumption(
        0.99e9, "weights", "published", "EAGLE's README: its drafter for LLaMA3-Instruct 70B; of MoA none is published"
    ),
    Assumption(1.05e9, "weights", "derived", "its config: 128,256 x 8,192"),
    Assumption(1152, "B", "assumed", "twice that of Llama-3-8B, as the hidden size"),
)
PHONE = DraftDevice("phone", Assumption(77e9, "B/s", "published", "Qualcomm Snapdragon 8 Gen 3: LPDDR5X-9600, 64 bits"))
LAPTOP = DraftDevice("laptop", Assumption(100e9, "B/s", "published", "Apple M3, technical specifications"))
PAPER = Assumption(
    0.763,
    "of 1",
    "derived",
    "arXiv 2410.03804: 4.22 tokens a verification (MoA, N = 0, Llama-3-8B, trees); 1 - 1/4.22: an endless chain of it",
)


def world(target: TargetSize, gpu: Gpu, gpus: int, device: DraftDevice, acceptance: Assumption = PAPER) -> World:
    """A case, with what all share."""
    return World(
        gpu,
        target,
        device,
        gpus,
        acceptance,
        context=Assumption(2000, "tokens", "assumed", "of a conversation, prompt included"),
        one_way_ms=Assumption(10, "ms", "published", "arXiv 2410.03804: mean delay of its 5G; here without jitter"),
        bandwidth_share=Assumption(0.8, "of 1", "assumed", "of the data sheet's bandwidth that a forward reaches"),
        flops_share=Assumption(0.5, "of 1", "assumed", "of the data sheet's FLOP/s that a forward reaches"),
        memory_share=Assumption(0.9, "of 1", "published", "vLLM's default gpu_memory_utilization"),
        launch_ms=Assumption(
            2, "ms", "assumed", "of a forward besides arithmetic: launching, sampling, the server's own work"
        ),
        draft_launch_ms=Assumption(0.5, "ms", "assumed", "of a co-located draft step besides arithmetic"),
        all_reduce_us=Assumption(
            10, "us", "assumed", "of a small all-reduce over NVLink, two a layer; one GPU has none"
        ),
        device_share=Assumption(0.6, "of 1", "assumed", "of a device's bandwidth that a draft step reaches"),
        device_bytes=Assumption(0.5625, "B a weight", "derived", "int4 with a bf16 scale for each 32"),
        device_launch_ms=Assumption(
            1, "ms", "measured", "from a draft step's end to the next one's begin (network suite)"
        ),
    )


def all_worlds() -> list[World]:
    return [
        world(LLAMA_8B, A100, 1, PHONE),
        world(LLAMA_8B, H100, 1, PHONE),
        world(LLAMA_8B, H100, 1, LAPTOP),
        world(LLAMA_70B, A100, 4, LAPTOP),
        world(LLAMA_70B, H100, 4, PHONE),
        world(LLAMA_70B, H100, 4, LAPTOP),
    ]
