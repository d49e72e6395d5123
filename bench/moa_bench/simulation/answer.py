"""One simulated answer, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass

from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftRule
from moa_shared.errors import InternalError

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.server import Costs, SimulatedServer
from moa_bench.simulation.text import PROMPT, ScriptedText, by_chance
from moa_bench.simulation.user import SimulatedLink, SimulatedUser


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """What one answer came to."""

    arrivals_ms: tuple[float, ...]  # of each token at the client
    forwards: int
    accepted: int
    drafted_nodes: int
    up_bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second after the first token."""
        return 1e3 * (len(self.arrivals_ms) - 1) / (self.arrivals_ms[-1] - self.arrivals_ms[0])

    @property
    def up_bytes_a_token(self) -> float:
        return self.up_bytes / len(self.arrivals_ms)


def simulate(
    acceptance: float | Callable[[int], bool],
    link: SimulatedLink,
    *,
    tokens: int = 1000,
    seed: int = 0,
    costs: Costs | None = None,
    drafting: DraftingSettings | None = None,
    rule: DraftRule | None = None,
    round_length: int = 1,
) -> SimulatedAnswer:
    """One answer.

    Args:
        acceptance: of the drafter, a token; or whether it is right about the answer's token of that number.
        drafting: how the client drafts; None: not at all.
        rule: of streamed drafts, in place of the client's own.
        round_length: of synchronous rounds.
    """
    costs = costs or Costs()
    loop = EventLoop()
    server = SimulatedServer(loop, costs, measured=True)
    text = ScriptedText(tokens, acceptance if callable(acceptance) else by_chance(acceptance, seed))
    run_ahead = drafting is None or drafting.server_runs_ahead
    user = SimulatedUser(
        loop, server, text, link, drafting, costs.draft_ms, seed=seed, round_length=round_length, run_ahead=run_ahead
    )
    device = user.device
    if rule is not None:
        device.online.streamed.rule = rule
    user.ask(tokens)
    loop.run(lambda: not device.is_answering)
    if list(device.conversation.answer) != text.tokens[len(PROMPT) : len(PROMPT) + tokens]:
        raise InternalError("The simulated client got another text than the target wrote.")
    drafted = device.drafter.drafted_nodes if device.drafter is not None else 0
    return SimulatedAnswer(tuple(user.arrivals_ms), server.forwards, server.accepted, drafted, user.up.bytes)
