"""What a machine means: each judgement at and above its threshold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from inline_snapshot import snapshot
from moa_server.capacity.plan import Needed
from moa_server.capacity.speed import Speed, StepEstimate
from moa_server.doctor.machine import (
    EARLIEST,
    Machine,
    judge_clock,
    judge_cpu,
    judge_disk,
    judge_estimate,
    judge_memory,
    judge_open_files,
    judge_speed,
    judge_threads,
    judge_user,
)
from moa_shared.programs.machine import Check, check_line

NEEDED = Needed(weights=1_000_000_000, drafters=0, process=150_000_000)
MIXTURE = replace(NEEDED, idle=900_000_000, is_mapped=True)
LONGEST = 8192, 200_000_000  # tokens, and bytes
MACHINE = Machine(
    cpu="CPU X",
    threads=8,
    cores=4,
    quota=None,
    memory_limit=None,
    open_files=1024,
    is_root=False,
    now=EARLIEST,
    clock_is_set=True,
)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            judge_memory(2 * 10**9, NEEDED, 0, MACHINE, LONGEST),
            snapshot(
                "  ok    memory       2.0 GB are free; the model takes 1.1 GB, a conversation of 8192 tokens 200.0 MB\n"
            ),
        ),
        (
            judge_memory(2 * 10**9, NEEDED, 10**9, replace(MACHINE, memory_limit=2 * 10**9), LONGEST),
            snapshot("""\
  fail  memory       2.0 GB are free (the container's limit is 2.0 GB); the model takes 1.1 GB and keys and values may take 1.0 GB, a conversation of 8192 tokens 200.0 MB
                     Lower --kv-bytes, or leave it out to take a share.
"""),
        ),
        (
            judge_memory(10**9, NEEDED, 0, MACHINE, LONGEST),
            snapshot("""\
  fail  memory       1.0 GB are free; the model takes 1.1 GB, a conversation of 8192 tokens 200.0 MB
                     Use a smaller model, or more memory.
"""),
        ),
        (
            judge_memory(2 * 10**9, NEEDED, 10**8, MACHINE, LONGEST),
            snapshot("""\
  warn  memory       2.0 GB are free; the model takes 1.1 GB and keys and values may take 100.0 MB, a conversation of 8192 tokens 200.0 MB
                     Long conversations are refused: --context-length 4096 at most.
"""),
        ),
        (
            judge_memory(10**9, MIXTURE, 0, MACHINE, LONGEST),
            snapshot("""\
  warn  memory       1.0 GB are free; the model takes 1.1 GB, a conversation of 8192 tokens 200.0 MB
                     Experts are read from the disk when a token goes to them: 250.0 MB are always needed.
"""),
        ),
        (
            judge_memory(10**9, replace(MIXTURE, is_mapped=False), 0, MACHINE, LONGEST),
            snapshot("""\
  fail  memory       1.0 GB are free; the model takes 1.1 GB, a conversation of 8192 tokens 200.0 MB
                     Use a smaller model, or more memory.
"""),
        ),
        (
            judge_estimate("int8", StepEstimate(5 * 10**9, 13e9)),
            snapshot("""\
  warn  speed        int8: at most about 2.6 tokens/s; a plain step reads 5.0 GB, and memory here gives 13 GB/s (an estimate)
                     Nobody gets 5 tokens/s: use a smaller model.
"""),
        ),
        (
            judge_estimate("int8", StepEstimate(5 * 10**8, 13e9)),
            snapshot("""\
  ok    speed        int8: at most about 26 tokens/s; a plain step reads 500.0 MB, and memory here gives 13 GB/s (an estimate)
                     --measure loads the model and measures.
"""),
        ),
        (
            judge_estimate("bf16", None),
            snapshot("""\
  skip  speed        not estimated on the level bf16
                     --measure loads the model and measures.
"""),
        ),
        (judge_disk("/cache", 5 * 10**9), snapshot("  ok    disk         5.0 GB are free in /cache\n")),
        (
            judge_disk("/cache", 5 * 10**8),
            snapshot("""\
  warn  disk         500.0 MB are free in /cache
                     Another model may not fit: free space, or name another --cache-dir.
"""),
        ),
        (
            judge_cpu("CPU X", "amx", "Kernels: amx (AMX int8 and AVX-512 VNNI), the fastest that this CPU runs."),
            snapshot("  ok    CPU          CPU X: amx (AMX int8 and AVX-512 VNNI), the fastest that this CPU runs\n"),
        ),
        (
            judge_cpu("", "avx2", "Kernels: avx2 (AVX2, FMA and F16C), the fastest that this CPU runs."),
            snapshot("""\
  warn  CPU          avx2 (AVX2, FMA and F16C), the fastest that this CPU runs
                     A CPU with AVX-VNNI, AVX-512 or AMX multiplies bytes several times faster.
"""),
        ),
        (
            judge_cpu(
                "CPU X",
                "avxvnni",
                "Kernels: avxvnni (AVX-VNNI), the fastest that this CPU runs of those compiled; amx would be faster, "
                "but was left out when moa was installed.",
            ),
            snapshot("""\
  warn  CPU          CPU X: avxvnni (AVX-VNNI), the fastest that this CPU runs of those compiled; amx would be faster, but was left out when moa was installed
                     Install moa again with a newer C compiler.
"""),
        ),
        (judge_threads(0, replace(MACHINE, threads=4)), snapshot("  ok    threads      4 for 4 cores\n")),
        (
            judge_threads(0, MACHINE),
            snapshot("""\
  warn  threads      8 for 4 cores with 8 hardware threads
                     They wait for each other: --threads 4.
"""),
        ),
        (
            judge_threads(0, replace(MACHINE, threads=4, quota=1.5)),
            snapshot("""\
  warn  threads      4 for 4 cores, of which the container may use 1.5
                     They wait for each other: --threads 1.
"""),
        ),
        (
            judge_threads(1, MACHINE),
            snapshot("""\
  warn  threads      1 for 4 cores with 8 hardware threads
                     Cores stay idle: --threads 4.
"""),
        ),
        (
            judge_threads(1, replace(MACHINE, threads=4, quota=0.5)),
            snapshot("  ok    threads      1 for 4 cores, of which the container may use 0.5\n"),
        ),
        (
            judge_speed("int8", Speed(step_ms=100.0, row_ms=10.0, read_ms=5.0)),
            snapshot(
                "  ok    speed        int8: a plain step takes 100.0 ms (10 tokens/s for one user), each further row 10.00 ms, a token of a prompt 5.00 ms; about 5 users at 5 tokens/s\n"
            ),
        ),
        (
            judge_speed("bf16", Speed(step_ms=180.0, row_ms=10.0, read_ms=5.0)),
            snapshot("""\
  ok    speed        bf16: a plain step takes 180.0 ms (6 tokens/s for one user), each further row 10.00 ms, a token of a prompt 5.00 ms; about 1 user at 5 tokens/s
                     Where the kernels run, int8 is faster on CPUs, and exact.
"""),
        ),
        (
            judge_speed("int8", Speed(step_ms=300.0, row_ms=10.0, read_ms=5.0)),
            snapshot("""\
  warn  speed        int8: a plain step takes 300.0 ms (3 tokens/s for one user), each further row 10.00 ms, a token of a prompt 5.00 ms
                     Nobody gets 5 tokens/s: use a smaller model.
"""),
        ),
        (judge_clock(MACHINE), snapshot("  ok    clock        it is set\n")),
        (judge_clock(replace(MACHINE, clock_is_set=None)), snapshot("  ok    clock        plausible\n")),
        (
            judge_clock(replace(MACHINE, clock_is_set=False)),
            snapshot("""\
  warn  clock        nothing keeps it right
                     Run an NTP service: certificates and logs need it.
"""),
        ),
        (
            judge_clock(replace(MACHINE, now=0.0)),
            snapshot("""\
  fail  clock        it is years behind
                     Set it: certificates are not yet valid for it.
"""),
        ),
        (
            judge_open_files(MACHINE, 1000),
            snapshot("""\
  warn  open files   1024 may be open; 1000 connections and the program need 1128
                     Raise the limit (ulimit -n 1128; in a unit: LimitNOFILE=1128), or lower --max-connections.
"""),
        ),
        (
            judge_open_files(MACHINE, 896),
            snapshot("  ok    open files   1024 may be open; 896 connections and the program need 1024\n"),
        ),
        (judge_open_files(replace(MACHINE, open_files=None), 1000), snapshot("  ok    open files   no limit\n")),
        (judge_user(MACHINE), snapshot("  ok    user         not root\n")),
        (
            judge_user(replace(MACHINE, is_root=True)),
            snapshot("""\
  warn  user         this is root, which a server does not need
                     Run it as a user of its own.
"""),
        ),
    ],
)
def test_judgements(check: Check, message: str) -> None:
    assert check_line(check) == message
    assert check.exit_code == (check.state == "fail")
