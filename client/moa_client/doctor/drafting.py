"""The steps about this device: which drafters are here, how fast they are, and which companion there could be."""

from __future__ import annotations

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.companion.known import fitting_companions
from moa_shared.programs.checks import Check, si_bytes
from moa_shared.programs.progress import Progress

from moa_client.device.companion_offer import find_offered, offered_words
from moa_client.device.drafter_catalog import DrafterCatalog
from moa_client.device.drafter_choice import DrafterCandidate
from moa_client.device.fetching import bytes_of
from moa_client.device.sources import AUTO, Sources, find_present, means_served, meant_drafters
from moa_client.settings import ClientSettings

WITHOUT_DRAFTER = (
    "Its text comes a token at a time: nobody drafts, and nothing is written here while it is away. "
    "See docs/drafters.md, or try --drafter lookup."
)

_TAKE = "With --companion auto it writes here while no server answers."
_NAME_ONE = "With --companion ID it writes here while no server answers (docs/drafters.md#a-companion)."
    "With --companion ID, or its GGUF file, it writes here while no server answers (docs/drafters.md#a-companion)."
)


def find_drafters(
    settings: ClientSettings, served: pb.DescribeResponse, manifest: pb.PartManifest | None, progress: Progress
) -> tuple[Sources | None, Check]:
    """The device's half for this server, if it is here.

    Raises:
        MoaError: --model or --drafter cannot be used.
    """
    if not means_served(settings) and not meant_drafters(settings, served):
        return None, Check("drafter", "ok", f"{settings.drafter}, as wished")
    names = ", ".join(each.name for each in meant_drafters(settings, served))
    if not names:
        return None, Check("drafter", "warn", "the server has none for its model", WITHOUT_DRAFTER)
    present, wanted = find_present(settings, served, progress)
    if present is not None:
        return present, Check("drafter", "ok", f"here: {names}")
    size = bytes_of(manifest, wanted) if manifest is not None else 0
    what = si_bytes(size) if size else "it"
    return None, Check("drafter", "warn", f"not here yet: {names}", f"The first chat fetches {what} from the server.")


def measure_drafters(settings: ClientSettings, sources: Sources) -> tuple[DrafterCandidate, ...]:
    """The time of a level of each drafter, which takes seconds the first time.

    Raises:
        MoaError: a checkpoint cannot be used.
    """
    return DrafterCatalog(settings, sources).measure()


def judge_companion(settings: ClientSettings, served: pb.DescribeResponse, sources: Sources | None) -> Check:
    """Which companion there is, or could be.

    Args:
        sources: the device's half for this server; None: nothing is here.
    """
    name, target = "companion", served.identity.target_id
    if settings.companion not in ("", AUTO):
        return Check(name, "ok", f"{settings.companion}, as wished")
    if served.HasField("companion"):
        words = offered_words(served.companion)
        if find_offered(settings, served.companion) is not None:
            return Check(name, "ok", f"here: {words}, which the server offers", "" if settings.companion else _TAKE)
        return Check(name, "ok", f"the server offers {words}", _TAKE)
    if settings.companion == AUTO:
        return Check(name, "warn", "the server offers none", "Name one with --companion FILE.")
    if sources is None:
        return Check(name, "skip", f"none; nothing of {target} is here to look for one by")
    fitting = fitting_companions(sources.files.config)
    if not fitting:
        return Check(name, "ok", f"none, and none is known for {target}")
    return Check(name, "ok", f"none; {' or '.join(each.hub for each in fitting)} would fit {target}", _NAME_ONE)
