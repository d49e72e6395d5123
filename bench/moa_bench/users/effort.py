"""What users ask, and for how long."""

from dataclasses import dataclass

from moa_shared.errors import ConfigError

from moa_bench.options import option
from moa_bench.users.questions import Lengths


@dataclass(frozen=True, slots=True)
class UsersEffort:
    """What users of one server ask.

    Args:
        apart_seconds: in which several users begin, one after the other; 0: at once. If answers are equally long too,
            users go on in step: all prompts are read together, and all answers end together.
    """

    users: tuple[int, ...] = option((1, 4, 16, 64), "Only so many users (repeat, ascending).", least=1, most=256)
    seconds: float = option(16.0, "For which they ask, in each way.", least=1)
    prompts: int = option(2, "Of each user, asked in turn.", least=1)
    answer_tokens: int = option(64, "Of each answer.", "--tokens", least=2)
    prompt_tokens: tuple[int, int] = option((50, 4000), "Of prompts.", metavar="SHORTEST LONGEST", least=1)
    think_seconds: float = option(0.0, "After each answer, on average.", "--think", metavar="SECONDS", least=0)
    seed: int = option(0, "Of prompts, thinking, links and drafts.")
    apart_seconds: float = 0.0
    draft_ms: float = 5.0  # of a draft step of an oracle

    def __post_init__(self) -> None:
        if list(self.users) != sorted(set(self.users)):
            raise ConfigError(f"The numbers of users are {self.users}.", hint="Give each once, the smallest first.")
        Lengths(*self.prompt_tokens)  # refuses those in the wrong order

    @property
    def lengths(self) -> Lengths:
        return Lengths(*self.prompt_tokens)
