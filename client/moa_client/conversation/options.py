"""What a surface asks of one answer, in plain values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from secrets import randbits
from typing import Any

from moa_shared.errors import ConfigError
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import DEFAULTED, Constraint, ConstraintKind, Sampling, WantedChances

from moa_client.tools.thinking import ReasoningMarks, marks_from
from moa_client.tools.tool import AnsweredCall, Tool, ToolCall

SEED_BITS = 32  # of one that is drawn: every reader of JSON keeps it exact
API_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}  # OpenAI's: programs that leave them out rely on them
_OFF = {name: getattr(Sampling(), name) for name in DEFAULTED}
_OF_REASONING = ("reasoning_effort", "thinking_budget")  # what the prompt and a constraint are made of


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How one answer is chosen and where it ends. None is left open, until the question is asked (`decided`).

    Args:
        temperature: 0 is greedy; None: as the model says.
        top_k, top_p, min_p, repeat_penalty, repeat_last_n: see `Sampling`; None: as the model says.
        seed: the same seed gives the same text; None: one of its own.
        max_tokens: of the answer; 0: as the context allows.
        stop: strings before which the answer ends.
        loop_guard: an answer that only repeats itself is ended.
        constraint: the form that the answer must have; None: any.
        chances: what the asker wants to know of the chances of its tokens; None: nothing.
        tools: that the conversation offers from here on; only its first answer has some.
        results: of the calls before, in place of a question.
        reasoning_effort: how much the model is asked to reason, such as "none"; None: as its chat template has it.
        thinking_budget: the most tokens of reasoning; None: as the answer allows.
        model: that has given the answer before another one continued the conversation; empty: the conversation's.
        marks: of reasoning in the answers of that; None: it has none.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    loop_guard: bool = True
    constraint: Constraint | None = None
    chances: WantedChances | None = None
    tools: tuple[Tool, ...] = ()
    results: tuple[AnsweredCall, ...] = ()
    reasoning_effort: str | None = None
    thinking_budget: int | None = None
    model: str = ""
    marks: ReasoningMarks | None = None

    def decided(self, *defaults: Mapping[str, Any], seed: int = 0) -> AnswerOptions:
        """The same with everything that was left open. `defaults`: the first that says something counts."""
        values: dict[str, Any] = {"seed": seed}
        for each in (_OFF, *reversed(defaults)):
            values |= each
        return replace(self, **{name: value for name, value in values.items() if getattr(self, name) is None})

    def settings(self) -> AnswerSettings:
        """The same for the engine; what was left open is off."""
        decided, names = self.decided(), Sampling.__dataclass_fields__
        sampling = Sampling(**{name: getattr(decided, name) for name in names if name != "answer_start"})
        return AnswerSettings(sampling, self.max_tokens, self.stop, loop_guard=self.loop_guard, chances=self.chances)

    def sampling(self) -> dict[str, float]:
        """Those that a model may have a say in, once decided, by name."""
        return {name: getattr(self, name) for name in DEFAULTED}

    def fields(self) -> dict[str, Any]:
        """The same as JSON has it; without what only some answers have, where there is none."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"stop": list(self.stop), "logit_bias": {str(token): bias for token, bias in self.logit_bias}}
        values["tools"] = [
            tool.function() | ({"server": tool.server, "listed": tool.listed} if tool.server else {})
            for tool in self.tools
        ]
        values["results"] = [
            {**asdict(each.call), "content": each.content, "is_error": each.is_error} for each in self.results
        ]
        if self.chances is not None:
            values["chances"] = asdict(self.chances)
        if self.marks is not None:
            values["marks"] = asdict(self.marks)
        if self.constraint is not None:
            values["constraint"] = {"kind": self.constraint.kind.name.lower(), "text": self.constraint.text}
        rare = ("constraint", "chances", "tools", "results", "model", "marks", *_OF_REASONING)
        return {name: value for name, value in values.items() if name not in rare or value not in (None, [], "")}

    def words(self) -> str:
        """The options of `moa-client chat` that choose the text, once decided; what is off is left out."""
        if not self.temperature:
            said: dict[str, object] = {"temperature": 0}
        else:
            said = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
            said = {name: value for name, value in said.items() if name == "top_p" or value}
        if self.repeat_penalty not in (None, 1.0):
            said |= {"repeat_penalty": self.repeat_penalty, "repeat_last_n": self.repeat_last_n}
        said |= {name: value for name in ("presence_penalty", "frequency_penalty") if (value := getattr(self, name))}
        if self.temperature:
            said["seed"] = self.seed
        if self.reasoning_effort is not None:
            said["reasoning_effort"] = self.reasoning_effort
        words = [f"--{name.replace('_', '-')} {value}" for name, value in said.items()]
        return " ".join([*words, *(f"--logit-bias {token}={bias:g}" for token, bias in self.logit_bias)])


OPEN = AnswerOptions()


def draw_seed() -> int:
    """A seed for an answer whose asker gives none."""
    return randbits(SEED_BITS)


def options_from(fields: Mapping[str, Any]) -> AnswerOptions:
    """The options that `AnswerOptions.fields` has made; what is missing is left open."""
    return AnswerOptions(
        **{name: _READ[name](value) if name in _READ and value is not None else value for name, value in fields.items()}
    )


def _constraint_from(fields: Mapping[str, Any]) -> Constraint:
    kinds = {kind.name.lower(): kind for kind in ConstraintKind}
    if fields.get("kind") not in kinds:
        raise ConfigError(f"A constraint has the kind {fields.get('kind')!r}, expected {', '.join(kinds)}.")
    return Constraint(kinds[fields["kind"]], str(fields.get("text", "")))


def _chances_from(fields: Mapping[str, Any]) -> WantedChances:
    likeliest, processed = fields.get("likeliest", 0), fields.get("processed", False)
    if type(likeliest) is not int or type(processed) is not bool or fields.keys() - {"likeliest", "processed"}:
        raise ConfigError(f"chances are {dict(fields)!r}, expected likeliest (0 to 20) and processed (true or false).")
    return WantedChances(likeliest, processed)


def token_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """Biases by token, as OpenAI's API has them."""
    for token in bias:
        if not (token.isascii() and token.isdigit() and len(token) <= len(str(1 << 32))):
            raise ConfigError(f"logit_bias names {token[:40]!r}, expected the id of a token.", hint="Such as 42.")
    return tuple(sorted((int(token), value) for token, value in bias.items()))


_READ: Mapping[str, Callable[[Any], Any]] = {
    "constraint": _constraint_from,
    "chances": _chances_from,
    "tools": lambda tools: tuple(Tool(**tool) for tool in tools),
    "results": lambda results: tuple(
        AnsweredCall(ToolCall(each["id"], each["name"], each["arguments"]), each["content"], each["is_error"])
        for each in results
    ),
    "marks": marks_from,
    "stop": tuple,
    "logit_bias": token_bias,
}
