"""The parts, one after the other: verification against the bare forward, and drafting as devices compute it."""

from moa_shared.models import WeightReader, load_tokenizer, resolve
from moa_shared.programs.progress import make_progress

from moa_bench.harness.cores import on_cores
from moa_bench.harness.drafters import find_drafter
from moa_bench.harness.prompts import PASSAGE
from moa_bench.harness.targets import load_level
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.micro import MicroEffort
from moa_bench.suites.micro.drafting import measure_drafting
from moa_bench.suites.micro.verification import measure_verification


def measure(effort: MicroEffort, run: SuiteRun) -> Result:
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    drafter = find_drafter(files)
    prefix = load_tokenizer(files).encode(PASSAGE)[: effort.prefix_tokens]
    with on_cores(run.server_cores):
        execution = load_level(files, run.level, progress)
        target = execution.target
        encode = target.memory_rows(drafter.checkpoint)
        with progress.task("Verification"):
            verification = measure_verification(target, prefix, encode, effort.repeats)
        with progress.task("Drafting"):
            decoder = drafter.checkpoint.decoder(WeightReader(files))
            drafting = measure_drafting(target, decoder, len(prefix), 5 * effort.repeats)
    return {
        "target": files.target_id,
        "drafter": drafter.description,
        "execution": execution.details,
        "prefix_tokens": len(prefix),
        "verification": verification,
        "drafting": drafting,
    }
