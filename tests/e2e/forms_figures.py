"""Answers of a form by the real model: whether they have it, with drafts and without, and what that costs and brings.

    python -m tests.e2e.forms_figures            # the figures of docs/measurements/engine.md
    python -m tests.e2e.forms_figures --answers 12 --calls 4 --rounds 1
    python -m tests.e2e.forms_figures --answers 0 --calls 0 --rounds 0 --cut-answers 500

It starts a server of its own. What is timed fills its tokens: a list without end, and free text that goes on after its
end; free and formed answers, and those with drafts, take turns.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from random import Random
from threading import Timer

import click
from moa_bench.harness.child import running_server
from moa_bench.harness.links import RunningLink, find_links, linked
from moa_bench.harness.questions import chat_tokens, questions_of
from moa_bench.harness.split_client import PlainClient, SplitClient, load_split_device
from moa_bench.machine import collect_interleaved, on_cores, split_cores
from moa_bench.report import Spread, paired_ratio
from moa_client.settings import ClientSettings
from moa_client.tools.answer_reader import AnswerReader, CallPiece, find_format
from moa_client.tools.formats import forced_grammar
from moa_client.tools.template import ChatTemplate
from moa_client.tools.tool import Tool
from moa_client.tools.turns import ChatMessage, template_input
from moa_shared.models import load_tokenizer, resolve
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling

PLACES = ("Paris", "Oslo", "Lima", "Cairo", "Quito")
PROPERTIES = {
    "city": {"type": "string", "maxLength": 24},
    "unit": {"enum": ["celsius", "fahrenheit"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 14},
}
RECORD = {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES], "additionalProperties": False}
LIST = {"type": "array", "items": RECORD, "minItems": 1000}
DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
FORMS = (
    Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(RECORD)),
    Constraint(ConstraintKind.REGEX, f"On {DATE} it (rains|snows|is dry)\\."),
    Constraint(ConstraintKind.CHOICE, json.dumps(["warm and dry", "warm and wet", "cold and dry", "cold and wet"])),
)
TOOL = Tool("get_weather", "Weather of a city.", RECORD)
CUT_S = 0.3
LATEST_CUT_S = 0.25  # after the question: most answers have not ended by then


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens of all users a second, and the ratios of interleaved rounds."""

    users: int
    free: Spread
    formed: Spread
    drafted: Spread
    cost: Spread  # formed to free
    gain: Spread  # drafted to formed


def wrong_answers(client: PlainClient, tokenizer: Tokenizer, count: int) -> tuple[int, int]:
    """How many answers are not of their form, and how many are others with drafts."""
    invalid = differing = 0
    for number in range(count):
        prompt, settings, form = _question(tokenizer, number)
        plain, drafted = (client.ask(prompt, settings, server_drafts=drafts).tokens for drafts in (False, True))
        invalid += not _is_of(form, tokenizer.shown(plain))
        differing += plain != drafted
    return invalid, differing


def cut_answers(
    plain: PlainClient, client: SplitClient, link: RunningLink, tokenizer: Tokenizer, count: int
) -> tuple[int, int]:
    """How many answers of a client whose link is cut are others than plain ones, and how many met the cut."""
    differing = met = 0
    for number in range(count):
        prompt, settings, _ = _question(tokenizer, number)
        whole = plain.ask(prompt, settings, server_drafts=False).tokens
        cut = Timer(Random(number).uniform(0.0, LATEST_CUT_S), link.cut, (CUT_S,))
        cut.start()
        answer = client.ask(prompt, settings).tokens
        met += cut.finished.is_set()
        cut.cancel()
        differing += answer != whole
    return differing, met


def _question(tokenizer: Tokenizer, number: int) -> tuple[list[int], AnswerSettings, Constraint]:
    """A prompt, how it is answered, and the form of its answer."""
    form, place = FORMS[number % len(FORMS)], PLACES[number % len(PLACES)]
    sampling = Sampling(0.0 if number % 4 == 0 else 1.0, seed=number, constraint=form)
    prompt = chat_tokens(tokenizer, f"What is the weather in {place} now?")
    return prompt, AnswerSettings(sampling, max_tokens=200), form


def _is_of(form: Constraint, text: str) -> bool:
    if form.kind is ConstraintKind.JSON_SCHEMA:
        return _is_record(text)
    return text in form.choices if form.kind is ConstraintKind.CHOICE else bool(re.fullmatch(form.text, text))


def _is_record(text: str) -> bool:
    try:
        match json.loads(text):
            case {"city": str(city), "unit": "celsius" | "fahrenheit", "days": int(days), **others}:
                return len(city) <= 24 and 1 <= days <= 14 and not others
    except ValueError:
        pass
    return False


def is_call_right(client: PlainClient, tokenizer: Tokenizer, seed: int) -> bool:
    """Whether an answer that must be a call is one whole call, with arguments of the schema."""
    template = tokenizer.chat_template or ""
    form = find_format(template)
    question = ChatMessage("user", f"What is the weather in {PLACES[seed % len(PLACES)]}?")
    given = template_input(form, template, [question], [TOOL])
    prompt = ChatTemplate(tokenizer).whole(given.messages, given.arguments)
    grammar = forced_grammar(form, [TOOL], tokenizer.special_tokens)
    sampling = Sampling(1.0, seed=seed, constraint=Constraint(ConstraintKind.LARK, grammar))
    answer = client.ask(prompt, AnswerSettings(sampling, max_tokens=200), server_drafts=True)
    reader = AnswerReader(None, form, [TOOL])
    pieces = [*reader.push(tokenizer.decode(list(answer.tokens))), *reader.finish()]
    calls = [piece for piece in pieces if isinstance(piece, CallPiece)]
    return len(calls) == 1 and _is_record(calls[0].arguments)


def speed_of(
    clock: Callable[[], float], client: PlainClient, tokenizer: Tokenizer, users: int, rounds: int, tokens: int = 64
) -> Speed:
    """How fast `users` at once are answered. `clock`: seconds."""
    prompts = [chat_tokens(tokenizer, question) for question in questions_of()[:users]]
    free = AnswerSettings(Sampling(1.0, seed=1), max_tokens=tokens, ignore_end_of_text=True)
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(LIST))
    formed = AnswerSettings(Sampling(1.0, seed=1, constraint=constraint), max_tokens=tokens)

    def rate(settings: AnswerSettings, *, drafts: bool) -> float:
        with ThreadPoolExecutor(users) as asking:
            began = clock()
            answers = list(asking.map(lambda prompt: client.ask(prompt, settings, server_drafts=drafts), prompts))
            return sum(len(answer.tokens) for answer in answers) / (clock() - began)

    rates: dict[str, Sequence[float]] = dict(
        collect_interleaved(
            {
                "free": lambda: rate(free, drafts=False),
                "formed": lambda: rate(formed, drafts=False),
                "drafted": lambda: rate(formed, drafts=True),
            },
            rounds,
            warm_up=1,
        )
    )
    cost, gain = (paired_ratio(rates[ours], rates[base]) for ours, base in (("formed", "free"), ("drafted", "formed")))
    return Speed(users, Spread.of(rates["free"]), Spread.of(rates["formed"]), Spread.of(rates["drafted"]), cost, gain)


@click.command()
@click.option("--answers", default=500)
@click.option("--cut-answers", "cut_count", default=0, help="Answers to a client over 5G whose link is cut for 0.3 s.")
@click.option("--calls", default=100)
@click.option("--rounds", default=5)
@click.option("--users", default=(1, 16), multiple=True)
@click.option(
    "--processor",
    is_flag=True,
    help="Count the server's processor time, which others on the machine hardly change: as with one core.",
)
@click.option("--pin", is_flag=True, help="The server on one core, the rest on another.")
def main(
    answers: int, cut_count: int, calls: int, rounds: int, users: tuple[int, ...], processor: bool, pin: bool
) -> None:
    """Prints the figures."""
    tokenizer = load_tokenizer(resolve("default"))
    cores, own = split_cores(pin)
    with on_cores(own), running_server(cores=cores) as server:
        client, clock = PlainClient(server.address), server.cpu_s if processor else time.monotonic
        for each in users if rounds else ():
            speed = speed_of(clock, client, tokenizer, each, rounds)
            print(
                f"{each} users, tokens a second: {speed.free:1} free, {speed.formed:1} of a form, {speed.drafted:1} drafted"
            )
            print(f"  of a form / free: {speed.cost:3}; drafted / not: {speed.gain:2}", flush=True)
        invalid, differing = wrong_answers(client, tokenizer, answers)
        print(f"{answers} answers: {invalid} not of their form, {differing} others with drafts", flush=True)
        if cut_count:
            with linked(find_links(("5G",))[0], server.address) as link, make_runner() as runner:
                device = load_split_device(runner, ClientSettings(server=server.address))
                with closing(SplitClient(runner, link.address, device)) as split:
                    differing, met = cut_answers(client, split, link, tokenizer, cut_count)
            print(f"{cut_count} answers over a link that is cut: {met} met the cut, {differing} others", flush=True)
        right = sum(is_call_right(client, tokenizer, seed) for seed in range(calls))
        print(f"{calls} required calls: {right} valid")
        client.close()


if __name__ == "__main__":
    main()
