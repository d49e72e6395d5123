"""`moa-bench`: the measurements. torch, gRPC and the models are imported when a measurement begins, not before."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from moa_shared.programs.entry import run_program
from moa_shared.protocol.levels import LEVELS

from moa_bench.harness.padding import Padding
from moa_bench.harness.shapes import FORMATS, SHAPES
from moa_bench.runs.commands import compare, named_path, report, run, traces_option

if TYPE_CHECKING:
    from moa_bench.capacity.ways import Drafts

Command = TypeVar("Command", bound=Callable[..., Any])


model_option = click.option(
    "--model", default="default", show_default=True, help="Target: default, hub id, folder or .gguf."
)
pin_option = click.option("--pin", is_flag=True, help="Pin the server to one core and everything else to another.")
short_option = click.option("--quick", is_flag=True, help="Short answers: shows that it works.")
json_option = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), metavar="FILE",
    help="Write the results there (- for standard output) instead of into the checkout's results and docs.",
)  # fmt: skip
repeats_option = click.option("--quick", is_flag=True, help="Few repeats: shows that it works, not what it costs.")


questions_option = click.option(
    "--questions", type=click.Path(path_type=Path), metavar="PATH",
    help="Ask these instead: JSON lines, or a folder of such files.",
)  # fmt: skip
level_option = click.option(
    "--level", type=click.Choice(LEVELS), default="int8", show_default=True, help="Arithmetic of the target."
)


def common_options(command: Command) -> Command:
    """Options of the measurements that repeat what they time."""
    for option in (repeats_option, json_option, model_option, level_option, pin_option):
        command = option(command)
    return command


link_option = click.option(
    "--link", "links", multiple=True, metavar="NAME", help="Only this link (may be repeated), such as 4G."
)


drafters_option = click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="NAME=PATH|ID",
    help="Measure this checkpoint too, under that name (repeat).  [only those in the package]",
)


def padding_options(command: Command) -> Command:
    """Options of the measurements that can emulate a larger target."""
    target_ms = click.option(
        "--target-ms",
        type=click.FloatRange(min=0, min_open=True),
        metavar="T",
        help="Emulate a larger target: each forward takes this long.",
    )
    row_ms = click.option(
        "--target-row-ms",
        type=click.FloatRange(min=0),
        metavar="T",
        help="And this much for each further row.  [a 50th of --target-ms]",
    )
    return target_ms(row_ms(command))


def padding_of(target_ms: float | None, target_row_ms: float | None) -> Padding | None:
    """The larger target to emulate; None: none."""
    if target_row_ms is not None and target_ms is None:
        raise click.UsageError("--target-row-ms needs --target-ms.")
    return Padding.of(target_ms, target_row_ms)


def shape_options(command: Command) -> Command:
    """Options of the measurements that can make a model of a real size."""
    shape = click.option(
        "--shape",
        type=click.Choice(list(SHAPES)),
        help="Measure a model of this real size, of random weights, with oracles' drafts.",
    )
    stored = click.option(
        "--format", "stored", type=click.Choice(list(FORMATS)), help="How its weights are stored.  [q4_k_m]"
    )
    return shape(stored(command))


def sized_model(model: str, shape: str | None, stored: str | None, target_ms: float | None) -> str:
    """The model to measure: of that shape, made now or before, or the one that was named."""
    if shape is None:
        if stored is not None:
            raise click.UsageError("--format needs --shape.")
        return model
    if model != "default" or target_ms is not None:
        raise click.UsageError("--shape makes a model of its own cost: leave --model and --target-ms out.")
    from moa_shared.programs.progress import make_progress

    from moa_bench.harness.random_model import random_model

    return str(random_model(shape, stored or "q4_k_m", make_progress()))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure moa on this machine.

    Without --quick and --json, results go to bench/results/ of the checkout and their tables into its docs.
    Figures depend on the machine: compare ratios within one run.
    """
    import structlog

    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


@cli.command()
@common_options
def micro(quick: bool, json_file: Path | None, model: str, level: str, pin: bool) -> None:
    """What the parts cost: verification, draft step, first token, bytes; one thread each."""
    from moa_bench.micro.suite import run_micro

    run_micro(model=model, quick=quick, json_file=json_file, pin=pin, level=level)


@cli.command()
@repeats_option
@json_option
@pin_option
def loop(quick: bool, json_file: Path | None, pin: bool) -> None:
    """Frames a second and punctual timers: asyncio's own event loop against uvloop; no model."""
    from moa_bench.micro.loops import run_loops

    run_loops(quick=quick, json_file=json_file, pin=pin)


@cli.command()
@repeats_option
@json_option
@pin_option
def start(quick: bool, json_file: Path | None, pin: bool) -> None:
    """How long each program takes to print its help, next to an empty Python program; no model."""
    from moa_bench.micro.starts import run_starts

    run_starts(quick=quick, json_file=json_file, pin=pin)


@cli.command()
@common_options
def surfaces(quick: bool, json_file: Path | None, model: str, level: str, pin: bool) -> None:
    """How soon a chat is there with and without the daemon, and its first token next to the endpoint's."""
    from moa_bench.micro.surfaces import run_surfaces

    run_surfaces(quick=quick, json_file=json_file, model=model, pin=pin)


@cli.command()
@common_options
def secure(quick: bool, json_file: Path | None, model: str, level: str, pin: bool) -> None:
    """What TLS, API keys and metrics cost: tokens a second, the server's CPU time, new connections."""
    from moa_bench.micro.secure import run_secure

    run_secure(quick=quick, json_file=json_file, model=model, level=level, pin=pin)


@cli.command()
@common_options
def envoy(quick: bool, json_file: Path | None, model: str, level: str, pin: bool) -> None:
    """What Envoy in front of a server costs a token."""
    from moa_bench.proxied.suite import run_envoy

    run_envoy(quick=quick, json_file=json_file, model=model, level=level, pin=pin)


@cli.command()
@common_options
@link_option
@click.option("--acceptance", "acceptances", multiple=True, type=float, help="Only this acceptance, 0 to 1.")
@click.option(
    "--drafter", metavar="default|deep|auto|PATH|ID", default="default", show_default=True, help="The real drafter."
)
@padding_options
def network(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    links: tuple[str, ...],
    acceptances: tuple[float, ...],
    drafter: str,
    target_ms: float | None,
    target_row_ms: float | None,
) -> None:
    """Answers over emulated links, against plain streaming over the same link."""
    from moa_bench.network.suite import run_network

    run_network(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        drafter=drafter,
        padding=padding_of(target_ms, target_row_ms),
        links=links,
        acceptances=acceptances,
    )


@cli.command()
@common_options
@link_option
@questions_option
@padding_options
def drafting(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    links: tuple[str, ...],
    questions: Path | None,
    target_ms: float | None,
    target_row_ms: float | None,
) -> None:
    """One user: drafts by the server, the device or both, over links, and the limit without a network."""
    from moa_bench.drafting.suite import run_drafting

    run_drafting(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        padding=padding_of(target_ms, target_row_ms),
        links=links,
        questions=questions,
    )


@cli.command()
@common_options
@questions_option
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="NAME=PATH|ID",
    help="Measure this checkpoint, a file, a folder or of the hub, under that name (repeat).  [those in the package]",
)
@click.option("--assistant", metavar="MODEL", help="A smaller model for transformers' assisted generation.")
@click.option("--peers/--no-peers", default=True, show_default=True, help="Run transformers and llama.cpp too.")
@click.option("--fetch-llama-cpp", is_flag=True, help="Install llama.cpp into the cache with npm, and nothing else.")
def single(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    questions: Path | None,
    drafters: tuple[str, ...],
    assistant: str | None,
    peers: bool,
    fetch_llama_cpp: bool,
) -> None:
    """One device: plain steps, prompt look-up and all drafters, next to transformers and llama.cpp."""
    if fetch_llama_cpp:
        from moa_shared.models.sources.cache import cache_root
        from moa_shared.programs.progress import make_progress

        from moa_bench.single.peers.llama_cpp import fetch

        click.echo(fetch(cache_root(), make_progress()))
        return
    from moa_bench.single.suite import run_single

    run_single(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        drafters=dict(map(named_path, drafters)),
        questions=questions,
        assistant=assistant,
        peers=peers,
    )


@cli.command()
@common_options
@padding_options
@shape_options
@click.option(
    "--acceptance",
    "acceptances",
    multiple=True,
    type=click.FloatRange(0, 1),
    help="Of the oracle that drafts with --shape (repeat).  [0.8]",
)
@questions_option
@click.option("--link", "links", multiple=True, metavar="NAME", help="Only this link (repeat).")
@traces_option
@drafters_option
def split(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    target_ms: float | None,
    target_row_ms: float | None,
    shape: str | None,
    stored: str | None,
    acceptances: tuple[float, ...],
    questions: Path | None,
    links: tuple[str, ...],
    traces: tuple[str, ...],
    drafters: tuple[str, ...],
) -> None:
    """Client and server over links: all ways to draft with every drafter, next to plain streaming."""
    if acceptances and shape is None:
        raise click.UsageError("--acceptance needs --shape.")
    if drafters and shape is not None:
        raise click.UsageError("No drafter has learnt random weights: leave --drafter out with --shape.")
    from moa_bench.split.suite import run_split

    run_split(
        model=sized_model(model, shape, stored, target_ms),
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        drafters=dict(map(named_path, drafters)),
        links=links,
        traces=traces,
        padding=padding_of(target_ms, target_row_ms),
        questions=questions,
        acceptances=(acceptances or (0.8,)) if shape is not None else (),
    )


@cli.command()
@common_options
@padding_options
@shape_options
def payoff(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    target_ms: float | None,
    target_row_ms: float | None,
    shape: str | None,
    stored: str | None,
) -> None:
    """Where drafts pay: the best way by round trip and by how many users ask at once, as a map."""
    from moa_bench.payoff.suite import run_payoff

    run_payoff(
        model=sized_model(model, shape, stored, target_ms),
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        padding=padding_of(target_ms, target_row_ms),
        sized=shape is not None,
    )


@cli.command()
@common_options
@questions_option
@drafters_option
def alone(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    questions: Path | None,
    drafters: tuple[str, ...],
) -> None:
    """What a device writes without its server, by the share of the answer that it had; and what an API client has."""
    from moa_bench.alone.suite import run_alone

    run_alone(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        drafters=dict(map(named_path, drafters)),
        questions=questions,
    )


@cli.command()
@common_options
@click.option("--link", default="5G", show_default=True, metavar="NAME", help="The link that is cut; not RTT 0.")
@click.option("--cuts", type=click.IntRange(min=0), help="Cuts of the link.  [100]")
@click.option("--kills", type=click.IntRange(min=0), help="Kills of the server.  [25]")
@traces_option
def cut(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    link: str,
    cuts: int | None,
    kills: int | None,
    traces: tuple[str, ...],
) -> None:
    """Whether answers stay whole, and how long they stall, when the link is cut or the server killed."""
    from moa_bench.cut.cut import run_cut

    run_cut(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        link=link,
        cuts=cuts,
        kills=kills,
        traces=traces,
    )


@cli.command()
@repeats_option
@json_option
@model_option
@pin_option
@click.option(
    "--llama-cpp",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Measure llama.cpp too: where npm has installed node-llama-cpp.",
)
@click.option(
    "--kernels", is_flag=True, help="Measure the kernels' products instead, by format and rows; needs no model."
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice(list(SHAPES)),
    help="Measure a model of this real size instead (may be repeated).",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(list(FORMATS)),
    help="How its random weights are stored (may be repeated).  [q4_k_m]",
)
def engine(
    quick: bool,
    json_file: Path | None,
    model: str,
    pin: bool,
    llama_cpp: Path | None,
    kernels: bool,
    shapes: tuple[str, ...],
    formats: tuple[str, ...],
) -> None:
    """The target's forward on the kernels, torch and llama.cpp, over rows and contexts; start-up and memory.

    With --shape: models of real sizes with random weights, which are made on the spot and cached.
    """
    if kernels and shapes:
        raise click.UsageError("--kernels and --shape measure different things: give one of them.")
    if kernels:
        from moa_bench.engine.products import run_products

        run_products(quick=quick, json_file=json_file, pin=pin)
        return
    if formats and not shapes:
        raise click.UsageError("--format needs --shape.")
    if shapes:
        from moa_bench.engine.sizes import run_sizes

        formats = formats or ("q4_k_m",)
        run_sizes(shapes=shapes, formats=formats, quick=quick, json_file=json_file, pin=pin, llama_cpp=llama_cpp)
        return
    from moa_bench.engine.suite import run_engine

    run_engine(model=model, quick=quick, json_file=json_file, pin=pin, llama_cpp=llama_cpp)


@cli.command()
@short_option
@json_option
@model_option
@questions_option
@click.option("--positions", type=click.IntRange(min=1), help="Positions of answers to compare.  [2000]")
def quality(quick: bool, json_file: Path | None, model: str, questions: Path | None, positions: int | None) -> None:
    """How far int8 and bf16 are from float32: divergence, perplexity and first choices over its own answers."""
    from moa_bench.engine.quality import run_quality

    run_quality(model=model, quick=quick, json_file=json_file, questions=questions, positions=positions)


@cli.command(name="same-text")
@model_option
@click.option(
    "--llama-cpp",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Where npm has installed node-llama-cpp.",
)
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Compare its perplexity.  [a passage]"
)
def same_text(model: str, llama_cpp: Path, text: Path | None) -> None:
    """Whether int8 writes what llama.cpp writes from the same GGUF file: greedy continuations, and perplexity."""
    from moa_bench.engine.same_text import run_same_text

    run_same_text(model=model, llama_cpp=llama_cpp, text=text)


@cli.command()
@short_option
@json_option
@model_option
@level_option
@pin_option
@click.option("--link", default="5G", show_default=True, metavar="NAME", help="The link that is cut.")
@click.option("--drafter", default="default", show_default=True, help="As for moa-client chat.")
@click.option("--answers", type=click.IntRange(1), default=200, show_default=True, help="Every second one is sampled.")
@click.option("--tokens", type=click.IntRange(2), default=64, show_default=True, help="Longest answer.")
@click.option("--questions", type=click.Path(path_type=Path), help="JSON lines, or a folder of such.  [own ones]")
def texts(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    link: str,
    drafter: str,
    answers: int,
    tokens: int,
    questions: Path | None,
) -> None:
    """Whole answers over a link that is cut, against the server's own, token by token."""
    from moa_bench.cut.texts import run_texts

    run_texts(
        model=model,
        level=level,
        drafter=drafter,
        link=link,
        answers=answers,
        tokens=tokens,
        questions=questions,
        pin=pin,
        quick=quick,
        json_file=json_file,
    )


@cli.command()
@level_option
@click.option("--positions", type=click.IntRange(min=1), help="Positions of the texts to read.  [100000]")
@click.option("--threads", multiple=True, type=click.IntRange(2, 64), help="Compared with one (repeat).  [2 and 3]")
@click.option("--batches", is_flag=True, help="Only random forwards of 1 to 16 sessions, until so many positions.")
@questions_option
@short_option
@json_option
@model_option
def invariance(
    level: str,
    positions: int | None,
    threads: tuple[int, ...],
    batches: bool,
    questions: Path | None,
    quick: bool,
    json_file: Path | None,
    model: str,
) -> None:
    """Whether a row's bits depend on what is computed with it: chains, trees, chunks, batches, threads, variants."""
    from moa_bench.engine.invariance.suite import run_invariance

    run_invariance(
        model=model,
        level=level,
        positions=positions,
        threads=threads,
        batches=batches,
        questions=questions,
        quick=quick,
        json_file=json_file,
    )


@cli.command()
@model_option
@pin_option
@click.option("--rtt-ms", type=click.FloatRange(min=1), default=50.0, show_default=True, help="Fixed round trip.")
@click.option(
    "--acceptance",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Of the oracle drafter.",
)
@click.option("--tokens", type=click.IntRange(min=8), default=48, show_default=True, help="Length of each answer.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw there instead.")
@click.option("--batch", is_flag=True, help="Draw the forwards of several sessions instead, in virtual time; no model.")
def timeline(
    model: str, pin: bool, rtt_ms: float, acceptance: float, tokens: int, out: Path | None, batch: bool
) -> None:
    """A picture of one answer: draft steps, forwards, and every frame between client and server."""
    if batch:
        from moa_bench.timeline.batch import run_batch

        run_batch(out)
        return
    from moa_bench.timeline.timeline import run_timeline

    run_timeline(model=model, pin=pin, rtt_ms=rtt_ms, acceptance=acceptance, tokens=tokens, out=out)


@cli.command()
@model_option
@pin_option
@click.option("--link", default="4G", show_default=True, metavar="NAME", help="The link that is cut; not RTT 0.")
@click.option("--cut-seconds", type=click.FloatRange(0, 600), default=4.0, show_default=True, help="How long.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.cast", help="Write there instead."
)
@click.option(
    "--surface",
    type=click.Choice(["chat", "daemon", "endpoint", "page"]),
    default="chat",
    show_default=True,
    help="A chat that runs alone, one of the daemon's, a program over its endpoint, or its page (as an animated WebP).",
)
def record(
    model: str,
    pin: bool,
    link: str,
    cut_seconds: float,
    out: Path | None,
    surface: Literal["chat", "daemon", "endpoint", "page"],
) -> None:
    """Record a chat, or a program, through a cut of its link, as an asciinema cast."""
    from moa_bench.cut.recording import run_recording

    run_recording(model=model, pin=pin, link=link, cut_s=cut_seconds, surface=surface, out=out)


@cli.command()
@short_option
@json_option
@model_option
def codecs(quick: bool, json_file: Path | None, model: str) -> None:
    """What each memory codec costs on the wire and in acceptance."""
    from moa_bench.cut.codecs import run_codecs

    run_codecs(model=model, quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
@model_option
def reveal(quick: bool, json_file: Path | None, model: str) -> None:
    """How much of a text its memory rows give back to somebody who has them without the tokens."""
    from moa_bench.hostile.reveal import run_reveal

    run_reveal(model=model, quick=quick, json_file=json_file)


@cli.command()
@common_options
@click.option("--attack", "attacks", multiple=True, metavar="NAME", help="Only this one (may be repeated).")
def hostile(quick: bool, json_file: Path | None, model: str, level: str, pin: bool, attacks: tuple[str, ...]) -> None:
    """How one honest client's gaps between tokens and the server's memory grow next to attackers."""
    from moa_bench.hostile.suite import run_hostile

    run_hostile(model=model, quick=quick, json_file=json_file, pin=pin, level=level, attacks=attacks)


@cli.command()
@common_options
@click.option("--users", multiple=True, type=click.IntRange(1, 256), help="Only so many users (repeat, ascending).")
@click.option(
    "--way",
    "kinds",
    multiple=True,
    type=click.Choice(["plain", "server", "oracle", "shipped", "auto", "everything"]),
    help="Only this way besides plain serving (repeat).",
)
@click.option("--acceptance", "acceptances", multiple=True, type=click.FloatRange(0, 1), help="Only this one (repeat).")
@click.option("--link", "links", multiple=True, metavar="NAME", help="Users take these in turn (repeat).  [loopback]")
@click.option("--prompts", type=click.IntRange(1), help="Of each user, asked in turn.  [2]")
@click.option("--seconds", type=click.FloatRange(1), help="For which they ask, in each way.  [16]")
@click.option("--tokens", type=click.IntRange(2), help="Of each answer.  [64]")
@click.option(
    "--prompt-tokens", type=click.IntRange(1), nargs=2, metavar="SHORTEST LONGEST", help="Of prompts.  [50 4000]"
)
@click.option(
    "--think", type=click.FloatRange(0), default=0.0, metavar="SECONDS", help="After each answer, on average."
)
@padding_options
@shape_options
@click.option("--seed", type=int, default=0, help="Of prompts, thinking and drafts.")
def capacity(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    users: tuple[int, ...],
    kinds: tuple[Drafts, ...],
    acceptances: tuple[float, ...],
    links: tuple[str, ...],
    prompts: int | None,
    seconds: float | None,
    tokens: int | None,
    prompt_tokens: tuple[int, int] | None,
    think: float,
    target_ms: float | None,
    target_row_ms: float | None,
    shape: str | None,
    stored: str | None,
    seed: int,
) -> None:
    """Users on one server, 1 to 64: speed, gaps, first tokens and fairness, with and without devices' drafts."""
    if shape is not None and not {"plain", "oracle"}.issuperset(kinds):
        raise click.UsageError("No drafter has learnt random weights: with --shape, --way is plain or oracle.")
    from moa_bench.capacity.questions import Lengths
    from moa_bench.capacity.suite import QUICK, CapacityEffort, run_capacity

    usual = QUICK if quick else CapacityEffort()
    effort = replace(
        usual,
        users=users or usual.users,
        kinds=kinds or (usual.kinds if shape is None else ("oracle",)),
        acceptances=acceptances or usual.acceptances,
        links=links,
        seconds=seconds or usual.seconds,
        prompts=prompts or usual.prompts,
        answer_tokens=tokens or usual.answer_tokens,
        lengths=Lengths(*prompt_tokens) if prompt_tokens else usual.lengths,
        think_seconds=think,
        seed=seed,
        padding=padding_of(target_ms, target_row_ms),
    )
    run_capacity(
        model=sized_model(model, shape, stored, target_ms),
        quick=quick,
        json_file=json_file,
        pin=pin,
        effort=effort,
        level=level,
        sized=shape is not None,
    )


@cli.command()
@short_option
@json_option
def simulate(quick: bool, json_file: Path | None) -> None:
    """Streamed drafts, rounds and waiting over all links, in the event simulation; no model, no network."""
    from moa_bench.simulation.suite import run_simulation

    run_simulation(quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
def scale(quick: bool, json_file: Path | None) -> None:
    """Users a GPU, cost and bandwidth for Llama-3-8B and 70B, in virtual time; each assumption has its source."""
    from moa_bench.simulation.scale.suite import run_scale

    run_scale(quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
@click.option("--waiting", is_flag=True, help="Instead: what it is worth that sessions wait for drafts that are due.")
def crowd(quick: bool, json_file: Path | None, waiting: bool) -> None:
    """How many users a server serves at a speed, over the acceptance, in the event simulation: one core, a GPU."""
    from moa_bench.simulation.crowd_suite import run_crowd
    from moa_bench.simulation.waiting_suite import run_waiting

    (run_waiting if waiting else run_crowd)(quick=quick, json_file=json_file)


@cli.command()
@repeats_option
@json_option
def proxy(quick: bool, json_file: Path | None) -> None:
    """A frame there and back by Ray Serve's proxy and its direct ingress, against a direct connection; no model."""
    from moa_bench.cluster.suite import run_proxy

    run_proxy(quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
@model_option
def soak(quick: bool, json_file: Path | None, model: str) -> None:
    """Whether the server's memory stays as it was after 50 sessions while 500 are opened, used and left."""
    from moa_bench.hostile.soak import run_soak

    run_soak(model=model, quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
@model_option
@level_option
@pin_option
@click.option("--drafter", default="default", show_default=True, help="default, or none: the clients wait meanwhile.")
@click.option("--restarts", "count", type=click.IntRange(1), help="How often.  [20]")
@click.option("--clients", type=click.IntRange(1, 256), help="Who ask.  [16]")
@click.option("--tokens", type=click.IntRange(2), help="Of an answer.  [64]")
@click.option("--grace", type=click.FloatRange(0), help="Seconds that answers have to end.  [1]")
@click.option("--kill", is_flag=True, help="Kill the server instead of asking it to end.")
@click.option("--successor", is_flag=True, help="Another server goes on meanwhile.")
def restarts(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    drafter: str,
    count: int | None,
    clients: int | None,
    tokens: int | None,
    grace: float | None,
    kill: bool,
    successor: bool,
) -> None:
    """Whether answers stay whole, and how long they stall, while their server is restarted under load."""
    from moa_bench.restarts.suite import QUICK, RestartEffort, run_restarts

    base = QUICK if quick else RestartEffort()
    effort = replace(
        base,
        restarts=count or base.restarts,
        clients=clients or base.clients,
        answer_tokens=tokens or base.answer_tokens,
        grace_s=base.grace_s if grace is None else grace,
        kill=kill,
        successor=successor,
    )
    run_restarts(model=model, drafter=drafter, level=level, quick=quick, json_file=json_file, pin=pin, effort=effort)


@cli.command()
@short_option
@json_option
@model_option
@level_option
@pin_option
@click.option("--drafter", default="default", show_default=True, help="default, or none: the clients wait meanwhile.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    type=click.Choice(["kill", "update", "add", "partition", "storm", "scale"]),
    help="Only this one (may be repeated).",
)
@click.option("--throughput", is_flag=True, help="Instead: two replicas on two cores against one on one.")
@click.option(
    "--engine", type=click.Choice(["processes", "ray"]), default="processes", show_default=True,
    help="ray: Ray scales the fleet, in the one scenario scale.",
)  # fmt: skip
@click.option("--plan", is_flag=True, help="Instead: 10,000 clients on 100 GPUs, in the simulation; no model.")
@click.option("--replicas", type=click.IntRange(2, 8), help="Of the fleet.  [2]")
@click.option("--kills", type=click.IntRange(1), help="Of replicas.  [50]")
@click.option("--updates", type=click.IntRange(1), help="Rolling ones, of all replicas.  [20]")
@click.option("--cuts", type=click.IntRange(1), help="Of links, in each of the scenarios that cut.  [10]")
@click.option("--clients", type=click.IntRange(2, 256), help="Who ask.  [16]")
@click.option("--tokens", type=click.IntRange(2), help="Of an answer.  [64]")
@click.option("--grace", type=click.FloatRange(0), help="Seconds that answers have to end.  [1]")
@padding_options
def fleet(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    drafter: str,
    scenarios: tuple[str, ...],
    throughput: bool,
    engine: str,
    plan: bool,
    replicas: int | None,
    kills: int | None,
    updates: int | None,
    cuts: int | None,
    clients: int | None,
    tokens: int | None,
    grace: float | None,
    target_ms: float | None,
    target_row_ms: float | None,
) -> None:
    """Whether answers stay whole while replicas are killed, replaced, joined and cut off, and who serves whom."""
    if plan:
        from moa_bench.simulation.fleet.suite import run_plan

        run_plan(quick=quick, json_file=json_file)
        return
    from moa_bench.fleet.scenarios import QUICK, FleetEffort
    from moa_bench.fleet.suite import run_fleet, run_scaling, run_throughput
    from moa_bench.fleet.throughput import QUICK_THROUGHPUT, ThroughputEffort

    if throughput:
        shares = QUICK_THROUGHPUT if quick else ThroughputEffort()
        run_throughput(model=model, level=level, quick=quick, json_file=json_file, effort=shares)
        return
    base = QUICK if quick else FleetEffort()
    effort = replace(
        base,
        replicas=replicas or base.replicas,
        most_replicas=max(replicas or 0, base.most_replicas),
        kills=kills or base.kills,
        updates=updates or base.updates,
        cuts=cuts or base.cuts,
        storms=cuts or base.storms,
        clients=clients or base.clients,
        answer_tokens=tokens or base.answer_tokens,
        grace_s=base.grace_s if grace is None else grace,
        padding=padding_of(target_ms, target_row_ms),
    )
    if engine == "ray":
        if scenarios not in ((), ("scale",)) or pin:
            raise click.UsageError("With --engine ray there is the scenario scale alone, and no --pin.")
        run_scaling(model=model, drafter=drafter, level=level, quick=quick, json_file=json_file, effort=effort)
        return
    run_fleet(
        model=model,
        drafter=drafter,
        level=level,
        quick=quick,
        json_file=json_file,
        pin=pin,
        scenarios=scenarios,
        effort=effort,
    )


for command in (run, compare, report):
    cli.add_command(command)


def main() -> None:
    """Entry point: every known error is one sentence and the catalogue's exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC writes raw lines of its own between our sentences
    signal.signal(signal.SIGTERM, _end)
    run_program(cli, "moa-bench")


def _end(number: int, frame: object) -> None:
    """Servers and links must end with us, and a result that is being written be whole: one signal is enough."""
    signal.signal(number, lambda number, frame: None)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
