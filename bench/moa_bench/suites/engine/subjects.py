"""The engines that `moa-bench engine` compares: the kernels on each variant, torch, and llama.cpp."""

import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from moa_kernels.library import VARIANT_VARIABLE, variant_name
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_shared.models.gguf.parts import is_gguf
from moa_shared.protocol.levels import INT8

from moa_bench.harness.targets import variants_here
from moa_bench.harness.workers import WorkerCommand

LLAMA_CPP = "llama.cpp"
# As a machine that has AVX512-VNNI and neither AMX nor bf16 instructions: torch's matrix products obey it.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
SCRIPT = Path(__file__).with_name("llama_cpp.mjs")


def our_subjects(model: str, cpu_flags: Collection[str], *, is_sized: bool = False) -> list[WorkerCommand]:
    """The kernels on every variant that this CPU runs, and torch on both of its levels.

    Args:
        is_sized: only the kernels in use: others would pack all weights once more, and torch unpack them.
    """

    def subject(name: str, level: str, environment: Mapping[str, str]) -> WorkerCommand:
        worker = ("-P", "-m", "moa_bench.suites.engine.worker", "--model", model, "--level", level)
        return WorkerCommand(name, (sys.executable, *worker), environment)

    names = [variant_name()] if is_sized else variants_here()
    subjects = [subject(f"kernels, {name}", INT8, {VARIANT_VARIABLE: name}) for name in names]
    if is_sized:
        return subjects
    subjects.append(subject("torch bf16", "bf16", {}))
    if "amx_bf16" in cpu_flags:
        subjects.append(subject("torch bf16 without AMX", "bf16", WITHOUT_AMX))
    return [*subjects, subject("torch float32", "float32", {})]


def llama_subject(folder: Path, files: ModelFiles, script: Path = SCRIPT) -> WorkerCommand:
    """llama.cpp on the same file, as a script lets it obey."""
    node = shutil.which("node")
    if node is None or not (folder / "node_modules" / "node-llama-cpp").is_dir():
        missing = "node" if node is None else f"{folder}/node_modules/node-llama-cpp"
        raise ConfigError(
            f"llama.cpp cannot be measured: {missing} is not there.",
            hint=f"Run npm install --prefix {folder} node-llama-cpp, or leave out --llama-cpp.",
        )
    if not is_gguf(files.weights[0]):
        raise ConfigError(
            f"llama.cpp cannot be measured: {files.target_id} is not a GGUF file.", hint="Leave out --llama-cpp."
        )
    return WorkerCommand(LLAMA_CPP, (node, str(script), str(folder.resolve()), str(files.weights[0])), trees=False)
