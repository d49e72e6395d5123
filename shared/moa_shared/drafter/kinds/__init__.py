"""The kinds of drafters, a module each, with what they share. `KINDS` has those of models' makers first.

The others by published tokens a forward: on MT-bench Qwen3-8B has 4.24 with DFlash, 3.26 with EAGLE-3; Llama-3-8B 4.2
to 4.8 with MoA, 3.43 with EAGLE-2. An MTP head has 3.1 where 0.71 of the three tokens that it guesses are right.
"""

from moa_shared.drafter.kinds.assistant import ASSISTANT
from moa_shared.drafter.kinds.config import KINDS, DrafterConfig, Kind
from moa_shared.drafter.kinds.dflash import DFLASH
from moa_shared.drafter.kinds.eagle import EAGLE2, EAGLE3, INDEPENDENT
from moa_shared.drafter.kinds.moa import MOA
from moa_shared.drafter.kinds.mtp import MTP

KINDS.update({kind.name: kind for kind in (ASSISTANT, DFLASH, MOA, MTP, EAGLE3, EAGLE2, INDEPENDENT)})

__all__ = ["KINDS", "DrafterConfig", "Kind"]
