"""What `moa-bench single` found: speeds, ratios of pairs, acceptance, by category and in all; as Markdown. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from moa_bench.report import Column, Spread, at_temperature, facts_line, median_of, paired_ratio, table, table_of

# What results and tables call the methods that they treat by themselves.
MODES = {"plain": "", "lookup": ", its look-up"}  # of a peer
SERVER = "moa-server, plain, streamed over loopback"
PLAIN = "plain"
ALL = "all"

Answer = Mapping[str, Any]
Round = Mapping[str, Any]  # as `ask_round` gives it, with its "category"
Milliseconds = Callable[[Sequence[Answer]], float]  # a token, of answers


@dataclass(frozen=True, slots=True)
class MethodFigures:
    method: str
    category: str
    questions: int  # that it answered
    tokens_per_s: Spread  # after the first token
    first_ms: Spread
    speed_up: Spread | None  # of tokens a second after the first, over plain serving's of the same question
    whole_speed_up: Spread | None  # of the whole answer, the first token included
    acceptance: float | None  # tokens a forward after the first token; None: unknown
    nodes: float | None  # of such a forward
    other_texts: int  # answers that are not plain serving's; they are in no speed-up of an exact method
    common: float  # share of the tokens before the first other one
    cpu_ms: float  # of a processor, for each token, the prompt's reading included


METHODS: tuple[Column, ...] = (
    ("method", "{0.method}"),
    ("tokens/s", "{0.tokens_per_s.median:.1f}"),
    ("speed-up", lambda each: "changes the text" if each.speed_up is None else f"{each.speed_up:2}"),
    ("whole answers", lambda each: median_of(each.whole_speed_up)),
    ("tokens a forward", lambda each: "" if each.acceptance is None else f"{each.acceptance:.2f}"),
    ("nodes", lambda each: "" if each.nodes is None else f"{each.nodes:.1f}"),
    ("first token, ms", "{0.first_ms.median:.0f}"),
    ("CPU, ms a token", "{0.cpu_ms:.1f}"),
)
BY_CATEGORY: tuple[Column, ...] = (
    ("method", "{0.method}"),
    ("category", "{0.category} ({0.questions})"),
    ("speed-up", lambda each: median_of(each.speed_up)),
)
PEER_FIGURES = "{0.tokens_per_s.median:.1f}", "{0.first_ms.median:.0f}", "{0.cpu_ms:.1f}"


def figures_of(rounds: Sequence[Round], own_text: Sequence[str]) -> list[MethodFigures]:
    """Figures of each method in each category and in all; rounds with short answers are left out.

    `own_text`: methods whose text need not be plain serving's; their tokens are compared, not their texts.
    """
    long = [each for each in rounds if not each["short"]]
    methods = dict.fromkeys(name for each in long for name in each["answers"])
    groups = {ALL: long}
    for each in long:
        groups.setdefault(each["category"], []).append(each)
    return [
        _figures(method, category, asked, own_text=method in own_text)
        for category, members in groups.items()
        for method in methods
        if (asked := [each for each in members if method in each["answers"]])
    ]


def _figures(method: str, category: str, rounds: Sequence[Round], *, own_text: bool) -> MethodFigures:
    answers = [answer for each in rounds for answer in each["answers"][method]]
    pairs = [each for each in rounds if own_text or all(answer["same"] for answer in each["answers"][method])]
    forwards = [answer for answer in answers if answer["forwards"]]
    steps = sum(answer["forwards"] for answer in forwards)
    tokens = sum(answer["tokens"] for answer in answers)
    return MethodFigures(
        method,
        category,
        len(rounds),
        Spread.of([1e3 / steady_ms([answer]) for answer in answers]),
        Spread.of([answer["first_ms"] for answer in answers]),
        _ratio(pairs, PLAIN, method, steady_ms),
        _ratio(pairs, PLAIN, method, _whole_ms),
        round(sum(answer["tokens"] - 1 for answer in forwards) / steps, 3) if steps else None,
        round(sum(answer["nodes"] for answer in forwards) / steps, 2) if steps else None,
        sum(not answer["same"] for answer in answers),
        round(sum(answer["common"] for answer in answers) / tokens, 4),
        round(1e3 * sum(answer["cpu_s"] for answer in answers) / tokens, 2),
    )


def _ratio(rounds: Sequence[Round], slower: str, faster: str, ms: Milliseconds) -> Spread | None:
    """How many times as fast one method is as another, round by round; None: there is none to compare."""
    if not rounds:
        return None
    return paired_ratio(*([ms(each["answers"][name]) for each in rounds] for name in (slower, faster)))


def plain_over(rounds: Sequence[Round], method: str, base: str = PLAIN, *, whole: bool = False) -> Spread | None:
    """How many times as fast `base` is as a method, after the first token or in all; None: never both answered."""
    both = [each for each in rounds if not each["short"] and {method, base} <= each["answers"].keys()]
    return _ratio(both, method, base, _whole_ms if whole else steady_ms)


def steady_ms(answers: Sequence[Answer]) -> float:
    """Milliseconds a token after the first, the mean of several answers; of one that came in one piece, of each."""
    return fmean(
        float(answer["steady_ms"]) / max(1, answer["tokens"] - 1) or float(answer["first_ms"]) / answer["tokens"]
        for answer in answers
    )


def _whole_ms(answers: Sequence[Answer]) -> float:
    """Milliseconds a token, the first included."""
    return fmean(float(answer["first_ms"] + answer["steady_ms"]) / answer["tokens"] for answer in answers)


def render(result: Mapping[str, Any]) -> str:
    rounds, peers = result["rounds"], result["peers"]
    figures = figures_of(rounds, result["own_text"])
    ours = [each for each in figures if each.method not in peers]
    parts = [
        facts_line(result),
        _what(result) + "\n",
        "### Ways to draft\n",
        table_of(METHODS, [each for each in ours if each.category == ALL]),
        _verdicts(figures, peers),
        "### Speed-up by category\n",
        table_of(BY_CATEGORY, [each for each in ours if each.category != ALL and each.method != PLAIN]),
        "### What a user would run instead\n",
        _peers(result, figures),
    ]
    if result["missing"]:
        parts.append("Not measured:\n" + "".join(f"- {name}: {why}\n" for name, why in result["missing"].items()))
    return "\n".join(parts)


def _what(result: Mapping[str, Any]) -> str:
    effort, short = result["effort"], sum(each["short"] for each in result["rounds"])
    text = (
        f"{len(result['rounds']) - short} questions, each asked of all methods in turn on the same core, "
        f"{at_temperature(effort.temperature)}, on the level {result['level']}; answers of {effort.shortest_answer} to "
        f"{effort.answer_tokens} tokens. Chains of {effort.chain} ({effort.copies} for prompt look-up), trees of "
        f"{effort.nodes} nodes, and drafts as served: grown while they pay, with copies and n-grams. Speed-up: tokens "
        "a second after the first token, over plain serving's mean before and after, on the same question: median "
        "(quartiles). CPU: of whole answers."
    )
    return text + (f" {short} questions had shorter answers and are left out." if short else "")


def _verdicts(figures: Sequence[MethodFigures], peers: Sequence[str]) -> str:
    """Whether all texts are plain serving's, and where drafting loses."""
    exact = [each for each in figures if each.category == ALL and (each.method not in peers or each.method == SERVER)]
    other = ", ".join(f"{each.method} ({each.other_texts})" for each in exact if each.other_texts)
    lines = ["Token by token, all answers are plain serving's."]
    if other:
        lines = [f"Answers that are not plain serving's, and are in no speed-up: {other}."]
    slower = [each.method for each in exact if each.speed_up and each.speed_up.median < 1.0 and each.method != SERVER]
    if slower:
        lines.append(
            f"Slower than plain serving: {', '.join(slower)}. There the drafts and the further rows of a forward take "
            "longer than the plain steps that they save."
        )
    return "\n".join(lines) + "\n"


def _peers(result: Mapping[str, Any], figures: Sequence[MethodFigures]) -> str:
    """Plain serving and the first drafter as served, over each peer."""
    rounds, own_text = result["rounds"], result["own_text"]
    bases = [name for name in (PLAIN, SERVER, result["served"]) if any(name in each["answers"] for each in rounds)]
    in_all = {each.method: each for each in figures if each.category == ALL}

    def over(name: str, base: str, *, whole: bool = False) -> str:
        spread = plain_over(rounds, name, base, whole=whole)
        return "" if name == base else "failed" if spread is None else f"{spread:2}"

    rows = []
    for name in (PLAIN, *result["peers"]):
        if (found := in_all.get(name)) is not None:
            ratios = [*(over(name, base) for base in bases), over(name, PLAIN, whole=True)]
            text = f"own text; same for {100 * found.common:.0f} %" if name in own_text else "plain serving's"
            rows.append([name, *(form.format(found) for form in PEER_FIGURES), *ratios, text])
    heads = [f"moa over it: {base}" for base in bases]
    head = ["", "tokens/s", "first token, ms", "CPU, ms a token", *heads, "plain, whole answers", "text"]
    note = (
        "Equally many tokens after the same prompt tokens, one thread on the same core; tokens a second after the "
        "first token. Other arithmetic writes another text: only speeds are compared. A ratio above 1 means that moa "
        "is faster.\n"
    )
    details = "".join(f"- {name}: {said}\n" for name, said in result["details"].items())
    return f"{note}\n{table(head, rows)}\n{details}"
