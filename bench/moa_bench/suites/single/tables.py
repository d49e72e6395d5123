"""What `moa-bench single` found, as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moa_bench.report.report import Column, at_temperature, energy_line, facts_line, table, table_of
from moa_bench.report.spread import Spread, median_of
from moa_bench.suites.single.figures import ALL, LLAMA_CPP, PLAIN, SERVER, MethodFigures, figures_of, plain_over

LEAST_OVER_LLAMA_CPP = 1.5  # the aim: plain serving over llama.cpp's
METHODS: tuple[Column, ...] = (
    ("method", "{0.method}"),
    ("tokens/s", "{0.tokens_per_s.median:.1f}"),
    ("speed-up", lambda each: "changes the text" if each.speed_up is None else f"{each.speed_up:2}"),
    ("whole answers", lambda each: median_of(each.whole_speed_up)),
    ("tokens a forward", lambda each: "" if each.acceptance is None else f"{each.acceptance:.2f}"),
    ("nodes", lambda each: "" if each.nodes is None else f"{each.nodes:.1f}"),
    ("first token, ms", "{0.first_ms.median:.0f}"),
    ("CPU, ms a token", "{0.cpu_ms:.1f}"),
    ("joules a token", lambda each: "" if each.joules is None else f"{each.joules:.2f}"),
)
PEER_FIGURES = "{0.tokens_per_s.median:.1f}", "{0.first_ms.median:.0f}", "{0.cpu_ms:.1f}"


def render(result: Mapping[str, Any]) -> str:
    rounds, peers = result["rounds"], result["peers"]
    figures = figures_of(rounds, result["own_text"])
    long = [each for each in rounds if not each["short"]]
    ours = [each for each in figures if each.method not in peers]
    drafting = [each for each in ours if each.method != PLAIN]
    with_forwards = [each for each in figures if each.acceptance is not None and each.method != PLAIN]
    return "\n".join(
        [
            facts_line(result),
            _what(result, len(long), len(rounds) - len(long)) + "\n",
            "### Ways to draft\n",
            table_of(METHODS, [each for each in ours if each.category == ALL]),
            _verdicts(figures, peers),
            "### Speed-up by category\n",
            _by_category(drafting, lambda each: median_of(each.speed_up)),
            "### Tokens a forward by category\n",
            _by_category(with_forwards, lambda each: f"{each.acceptance:.2f}"),
            "### What a user would run instead\n",
            _peers(result, figures),
            _missing(result["missing"]),
        ]
    )


def _what(result: Mapping[str, Any], count: int, short: int) -> str:
    effort = result["effort"]
    how = at_temperature(effort.temperature)
    text = (
        f"{count} questions, each asked of all methods in turn on the same core, {how}, on the level "
        f"{result['level']}; answers of {effort.shortest_answer} to {effort.answer_tokens} tokens. Chains of "
        f"{effort.chain} ({effort.copies} for prompt look-up), trees of {effort.nodes} nodes, and drafts as "
        "served: grown while they pay, with copies and n-grams. Speed-up: tokens a second after the first token, over "
        "plain serving's mean before and after, on the same question: median (quartiles). CPU and joules: of whole "
        f"answers. {energy_line(result)}"
    )
    return text + (f" {short} questions had shorter answers and are left out." if short else "")


def _verdicts(figures: Sequence[MethodFigures], peers: Sequence[str]) -> str:
    """Whether all texts are plain serving's, and where drafting loses."""
    exact = [each for each in figures if each.category == ALL and (each.method not in peers or each.method == SERVER)]
    other = {each.method: each.other_texts for each in exact if each.other_texts}
    lines = ["Token by token, all answers are plain serving's."]
    if other:
        named = ", ".join(f"{name} ({count})" for name, count in other.items())
        lines = [f"Answers that are not plain serving's, and are in no speed-up: {named}."]
    slower = [each.method for each in exact if each.speed_up and each.speed_up.median < 1.0 and each.method != SERVER]
    if slower:
        lines.append(
            f"Slower than plain serving: {', '.join(slower)}. There the drafts and the further rows of a forward take "
            "longer than the plain steps that they save: a step of this target is not long enough for drafts of that "
            "size."
        )
    return "\n".join(lines) + "\n"


def _by_category(figures: Sequence[MethodFigures], cell: Callable[[MethodFigures], str]) -> str:
    categories = list(dict.fromkeys(each.category for each in figures))
    rows = []
    for method in dict.fromkeys(each.method for each in figures):
        found = {each.category: each for each in figures if each.method == method}
        rows.append([method, *(cell(found[name]) if name in found else "" for name in categories)])
    counts = {each.category: each.questions for each in figures}
    return table(["method", *(f"{name} ({counts[name]})" for name in categories)], rows)


def _peers(result: Mapping[str, Any], figures: Sequence[MethodFigures]) -> str:
    """Plain serving and the first drafter as served, over each peer."""
    rounds, own_text = result["rounds"], result["own_text"]
    bases = [name for name in (PLAIN, SERVER, result["served"]) if any(name in each["answers"] for each in rounds)]
    in_all = {each.method: each for each in figures if each.category == ALL}
    rows = []
    for name in (PLAIN, *result["peers"]):
        if (found := in_all.get(name)) is None:
            continue
        ratios = ["" if name == base else _ratio(plain_over(rounds, name, base)) for base in bases]
        ratios.append("" if name == PLAIN else _ratio(plain_over(rounds, name, whole=True)))
        text = f"own text; same for {100 * found.common:.0f} %" if name in own_text else "plain serving's"
        rows.append([name, *(form.format(found) for form in PEER_FIGURES), *ratios, text])
    over = [f"moa over it: {base}" for base in bases]
    head = ["", "tokens/s", "first token, ms", "CPU, ms a token", *over, "plain, whole answers", "text"]
    note = (
        "Equally many tokens after the same prompt tokens, one thread on the same core; tokens a second after the "
        "first token. Other arithmetic writes another text: only speeds are compared. A ratio above 1 means that moa "
        "is faster.\n"
    )
    details = "".join(f"- {name}: {said}\n" for name, said in result["details"].items())
    return f"{note}\n{table(head, rows)}\n{details}{_aim(rounds)}"


def _ratio(spread: Spread | None) -> str:
    return "failed" if spread is None else f"{spread:2}"


def _aim(rounds: Sequence[Mapping[str, Any]]) -> str:
    base = SERVER if any(SERVER in each["answers"] for each in rounds) else PLAIN
    steady, whole = plain_over(rounds, LLAMA_CPP, base), plain_over(rounds, LLAMA_CPP, base, whole=True)
    if steady is None or whole is None:
        return ""
    both = {"after the first token": steady, "over whole answers": whole}
    held = ", and ".join(
        f"{'holds' if each.median >= LEAST_OVER_LLAMA_CPP else 'does not hold'} {when} ({each.median:.2f})"
        for when, each in both.items()
    )
    return f"\nThat {base} is at least {LEAST_OVER_LLAMA_CPP:g} times as fast as llama.cpp {held}.\n"


def _missing(missing: Mapping[str, str]) -> str:
    if not missing:
        return ""
    return "Not measured:\n" + "".join(f"- {name}: {why}\n" for name, why in missing.items())
