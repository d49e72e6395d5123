"""Which of the processes that torchrun has started for one replica this one is, and whether they can share a target.

Pure. The environment is torchrun's; other launchers set the same variables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moa_shared.errors import ConfigError
from moa_shared.models.families import EARLIEST

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a replica.

    `number`: 0 serves, the others follow. `local_count`: of the processes on its machine.
    """

    number: int
    count: int
    local: int
    local_count: int


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    launched = all(name in environment for name in VARIABLES)
    count = int(environment["WORLD_SIZE"]) if launched else 1
    if count == 1:
        return None
    return Rank(
        int(environment["RANK"]),
        count,
        int(environment["LOCAL_RANK"]),
        int(environment.get("LOCAL_WORLD_SIZE", count)),
    )


def check_shares(config: Mapping[str, Any], name: str, count: int) -> None:
    """Checks that `count` processes can share a target evenly. `name`: of the target, for people."""
    if count > 1 and config["model_type"] not in EARLIEST:
        raise ConfigError(
            f"{name} is of the family {config['model_type']}, which processes do not share.",
            hint="Serve it in one process, without torchrun.",
        )
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % count == 0 and kv_heads % count == 0:
        return
    fitting = [str(each) for each in range(2, kv_heads + 1) if kv_heads % each == 0 and heads % each == 0]
    raise ConfigError(
        f"{name} has {heads} heads and {kv_heads} of keys and values: {count} processes cannot share them evenly.",
        hint=f"Start {' or '.join(fitting)} processes." if fitting else "Serve it in one process, without torchrun.",
    )
