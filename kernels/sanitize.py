"""Runs the kernels through their Python API with the address and undefined-behaviour sanitizers: `make sanitize`.

Builds the variants named as arguments, else every one that this CPU runs, into a temporary folder, and exercises
each in a process of its own. Exit status: 0 nothing found; 77 the compiler has no sanitizer to load (gcc's libasan),
which is said on stderr; else a finding.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from kernel_build import compile_library, find_compiler, machine
from moa_kernels import (
    FORMATS,
    KV_FORMATS,
    BesideNorms,
    Experts,
    Heads,
    Layer,
    LayerEmbedding,
    Linear,
    QuantisedMatrix,
    Rotary,
    Segment,
    Stack,
    StackShape,
    norm,
    pack,
    set_threads,
    tile_bytes,
)
from moa_kernels.library import FOLDER_VARIABLE, VARIANT_VARIABLE, explain, probe
from moa_kernels.tiles import FROM_FLOATS
from moa_kernels.variants import PROBE, library_file, variants_of

# Unoptimised and not inlined, so that each check is compiled once, not for each format and number of rows; with the
# lines of findings, but not the places of all variables, which take as long again.
FLAGS = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DINLINE=static inline")
SKIPPED = 77  # as in automake


def main(names: list[str]) -> int:
    compiler = find_compiler()
    runtime = "" if compiler is None else compiler.run(["-print-file-name=libasan.so"]).strip()
    if compiler is None or not Path(runtime).is_absolute():
        print("Skipped: there is no gcc with libasan.", file=sys.stderr)
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_library(compiler, PROBE, folder / library_file(PROBE))
        for variant in variants_of(machine()):
            if names and variant.name not in names:
                continue
            if not probe(folder) & variant.bit:
                print(f"{variant.name}: not run, because this CPU lacks {variant.instructions}")
                continue
            compile_library(compiler, variant.name, folder / library_file(variant.name), FLAGS)
            sanitized = {
                "LD_PRELOAD": runtime,
                "ASAN_OPTIONS": "detect_leaks=0",  # of Python's, which never frees all
                "UBSAN_OPTIONS": "print_stacktrace=1",
                FOLDER_VARIABLE: str(folder),
                VARIANT_VARIABLE: variant.name,
            }
            done = subprocess.run([sys.executable, __file__, "--exercise"], env={**os.environ, **sanitized})
            if done.returncode:
                print(f"{variant.name}: ended with {done.returncode}", file=sys.stderr)
                return 1
            print(f"{variant.name}: nothing found")
    return 0


def exercise() -> None:
    """Calls everything once, at sizes where tiles, blocks of rows and pages are not full."""
    print(explain())
    random = np.random.default_rng(1)
    for threads in (1, 3):
        set_threads(threads)
        for kind in (*FORMATS, "plain"):
            step = 32 if kind == "plain" else FORMATS[kind].values
            for outputs, inputs, rows in ((16, step, 1), (33, 3 * step, 3), (130, 2 * step, 7), (40, 5 * step, 41)):
                exercise_linear(random, kind, outputs, inputs, rows)
        for kv in KV_FORMATS:
            for reads_memory in (False, True):
                exercise_stack(random, kv=kv, reads_memory=reads_memory)
            exercise_differing_layers(random, kv=kv)
    exercise_packing(random)
    norm(random.normal(size=(3, 96)).astype(np.float32), np.ones(96, np.float32), 1e-5)


def random_matrix(random: np.random.Generator, kind: str, outputs: int, inputs: int) -> QuantisedMatrix:
    stored = FORMATS[kind]
    raw = random.integers(0, 256, (outputs, inputs // stored.values, stored.size), np.uint8)
    for at in stored.halves:
        raw[..., at : at + 2] = np.full(1, 0.01, np.float16).view(np.uint8)
    if stored.exponent is not None:
        raw[..., stored.exponent] = 120
    return QuantisedMatrix(kind, raw)


def exercise_linear(random: np.random.Generator, kind: str, outputs: int, inputs: int, rows: int) -> None:
    weights = [random_matrix(random, "q8_0" if kind == "plain" else kind, outputs, inputs)]
    bias = random.normal(size=outputs).astype(np.float32)
    Linear(weights, bias, plain=kind == "plain")(random.normal(size=(rows, inputs)).astype(np.float32))


def exercise_packing(random: np.random.Generator) -> None:
    """Floats as files hold them, with rows in pairs and a last tile that is not full."""
    weights = random.normal(size=(36, 96)).astype(np.float32)
    bfloats = (weights.view(np.uint32) >> 16).astype(np.uint16)
    for stored, source in (("f32", weights), ("f16", weights.astype(np.float16)), ("bf16", bfloats)):
        for kind in FROM_FLOATS:
            into = np.empty(tile_bytes(kind, 36, 96) // 3, np.uint8)
            rows = np.ascontiguousarray(source).view(np.uint8)
            pack(kind, rows, 36, 96, into, stored=stored, heads=3, tiles=range(2, 3))


def exercise_stack(random: np.random.Generator, *, kv: str, reads_memory: bool) -> None:
    hidden, inner, heads, kv_heads, head_dim = 96, 160, 6, 2, 32
    shape = StackShape(hidden, inner, heads, kv_heads, head_dim, 1e-5, reads_memory)
    wide = (heads + (0 if reads_memory else 2 * kv_heads)) * head_dim

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear([random_matrix(random, "q4_1", outputs, inputs)], np.ones(outputs, np.float32))

    def layer() -> Layer:
        ones, head_ones = np.ones(hidden, np.float32), np.ones(head_dim, np.float32)
        qkv, out = linear(wide, hidden), linear(hidden, heads * head_dim)
        return Layer(ones, qkv, out, ones, linear(2 * inner, hidden), linear(hidden, inner), head_ones, head_ones)

    stack = Stack(shape, [layer(), layer()], Rotary(head_dim, {"rope_type": "default", "rope_theta": 1e4}))
    caches = [stack.new_cache(kv=kv) for _ in range(2)]
    for cache, past in zip(caches, (63, 130), strict=True):
        for index in range(2):
            keys = random.normal(size=(past, kv_heads, head_dim)).astype(np.float32)
            cache.write(index, keys, keys)
        cache.length = past
    if reads_memory:
        segments = [Segment.memory(cache, np.arange(4, dtype=np.int32)) for cache in caches]
    else:
        segments = [Segment.chain(caches[0], 5), Segment.tree(caches[1], [-1, 0, 0, 1, 1, 2, 5])]
    rows = random.normal(size=(sum(segment.rows for segment in segments), hidden)).astype(np.float32)
    stack.run(rows, segments, state_layers=[1])
    if not reads_memory:
        stack.fill(rows, segments)
        caches[1].length += 7
        caches[1].keep_behind(130, [0, 2, 5])
        caches[1].move_last(2, 3)
        caches[1].read(0, caches[1].length)


def exercise_differing_layers(random: np.random.Generator, *, kv: str) -> None:
    """Layers with other heads, one that reads the keys and values of another, experts beside an MLP, embeddings."""
    shape = StackShape(96, 160, 4, 2, 32, 1e-5, embedding=32)
    ones = np.ones(96, np.float32)

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear([random_matrix(random, "q4_1", outputs, inputs)])

    def layer(heads: Heads, own: int, **changes: Any) -> Layer:
        queries, head_ones = shape.heads * heads.dim, np.ones(heads.dim, np.float32)
        embedding = LayerEmbedding(linear(32, 96), linear(96, 32), ones)
        qkv = linear(queries + own, 128 if "attention_embedding_norm" in changes else 96)
        return Layer(
            ones, qkv, linear(96, queries), ones, linear(2 * changes.get("inner", 160), 96),
            linear(96, changes.get("inner", 160)), head_ones, head_ones, heads=heads, rotary=int(heads.dim > 32),
            embedding=embedding, out_scale=0.5, **changes,
        )  # fmt: skip

    pairs = [(linear(64, 96), linear(96, 32)) for _ in range(5)]
    router = Linear([random.normal(size=(5, 96)).astype(np.float32)], plain=True)
    experts = Experts(router, 2, lambda number: pairs[number], scales=np.ones(5, np.float32))
    narrow, wide = Heads(2, 32), Heads(1, 96)
    layers = [
        layer(narrow, 128, value_norm=np.ones(32, np.float32), experts=experts, beside=BesideNorms(*[ones] * 4)),
        layer(wide, 96, keys_are_values=True, value_norm=np.ones(96, np.float32)),
        layer(narrow, 0, reads_layer=0, window=7, inner=320, attention_embedding_norm=np.ones(32, np.float32)),
    ]
    angles = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    stack = Stack(shape, layers, [Rotary(32, {"rope_type": "default", "rope_theta": 1e4}), Rotary(96, angles)])
    cache = stack.new_cache(kv=kv)
    for rows in (70, 3):
        states = random.normal(size=(rows, 96)).astype(np.float32)
        own = random.normal(size=(rows, 3, 32)).astype(np.float32)
        stack.run(states, [Segment.chain(cache, rows)], embeddings=own)
        cache.length += rows
    cache.keep_behind(63, [0, 2, 8])
    cache.read(0, cache.length)


if __name__ == "__main__":
    if sys.argv[1:] == ["--exercise"]:
        exercise()
    else:
        sys.exit(main(sys.argv[1:]))
