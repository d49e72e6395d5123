"""The steps about this device: which drafters are here, which companion there is or could be, and how fast they are."""

from __future__ import annotations

from dataclasses import replace

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.companion.known import fitting_companions
from moa_shared.drafter.companion.loading import find_companion, load_companion
from moa_shared.models import load_tokenizer
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.machine import Check, si_bytes
from moa_shared.programs.progress import Progress

from moa_client.device.companion_offer import find_offered, offered_words
from moa_client.device.drafter_catalog import DrafterCandidate, DrafterCatalog, level_ms
from moa_client.device.fetching import bytes_of
from moa_client.device.sources import AUTO, NONE, Sources, find_present, means_served, meant_drafters
from moa_client.settings import ClientSettings

TEXT_TOKENS = 1000  # of the text whose keys and values are told
WITHOUT_DRAFTER = (
    "Its text comes a token at a time: nobody drafts, and nothing is written here while it is away. "
    "See docs/drafters.md, or try --drafter lookup."
)
_TAKE = "--companion auto fetches it, once: it writes here while no server answers."
_NAME_ONE = "With --companion ID it writes here while no server answers (docs/drafters.md#a-companion)."


def find_drafters(
    settings: ClientSettings, served: pb.DescribeResponse, manifest: pb.PartManifest | None, progress: Progress
) -> tuple[Sources | None, Check]:
    """The device's half for this server, if it is here."""
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


def examine_companion(
    settings: ClientSettings, served: pb.DescribeResponse, sources: Sources | None, progress: Progress
) -> Check:
    """The companion: whether it has the vocabulary of the server's model, and what it takes; else which there could be.

    Args:
        sources: the device's half for this server; None: nothing is here.
    """
    if settings.companion == AUTO:
        files = find_offered(settings, served.companion)
    else:
        files = find_companion(settings.companion, settings.cache_dir, progress) if settings.companion else None
    if files is None:
        return _possible_companion(settings, served, sources)
    present, _ = find_present(replace(settings, drafter=NONE), served, progress)
    target = present.files if present is not None else files
    companion = load_companion(files, target, settings.cache_dir, progress, weights=settings.dtype)
    text = companion.new_cache().most_nbytes(TEXT_TOKENS)
    breadth = 1 if settings.mode == "chain" else settings.breadth
    took = level_ms(cache_root(settings.cache_dir), companion.fingerprint, breadth, companion.new_state)
    sizes = f"{si_bytes(companion.weights_bytes)} of weights, {si_bytes(text)} for a text of {TEXT_TOKENS} tokens"
    message = f"{companion.name}: {sizes}; a level of a draft takes {took:.1f} ms"
    if present is None:
        hint = "Its vocabulary is compared when the first chat has fetched the server's tokenizer."
        return Check("companion", "warn", message, hint)
    if companion.tokenizer.chat_template != load_tokenizer(target).chat_template:
        message += "; its chat template is another one: it reads conversations in the server's"
    return Check("companion", "ok", message)


def measure_drafters(settings: ClientSettings, sources: Sources) -> tuple[DrafterCandidate, ...]:
    """The time of a level of each drafter, which takes seconds the first time."""
    return DrafterCatalog(settings, sources).measure()


def _possible_companion(settings: ClientSettings, served: pb.DescribeResponse, sources: Sources | None) -> Check:
    name, target = "companion", served.identity.target_id
    if served.HasField("companion"):
        words = f"the server offers {offered_words(served.companion)}"
        if settings.companion:
            return Check(name, "warn", f"{words}, which is not here yet", "The first chat fetches it.")
        return Check(name, "ok", words, _TAKE)
    if settings.companion:
        return Check(name, "warn", "the server offers none", "Name one with --companion FILE.")
    if sources is None:
        return Check(name, "skip", f"none; nothing of {target} is here to look for one by")
    fitting = fitting_companions(sources.files.config)
    if not fitting:
        return Check(name, "ok", f"none, and none is known for {target}")
    return Check(name, "ok", f"none; {' or '.join(each.hub for each in fitting)} would fit {target}", _NAME_ONE)
