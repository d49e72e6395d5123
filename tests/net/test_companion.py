"""A companion on the device: its text in cuts and before any server was there, and what servers make of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Committed, Corrected, Ended, Event, LinkState, ServerChanged, Settled
from moa_client.device import companion_offer
from moa_client.device.companion_offer import find_offered, offered_words, take_offered
from moa_client.device.loading import Device
from moa_client.drafting.companion import CompanionDrafter, CompanionPair
from moa_client.drafting.drafters import ClientDrafter
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.host.starting import Reached, Started, find, load
from moa_client.link.fleet import Fleet, connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_kernels import F32
from moa_server.loading import load_host
from moa_server.running.running_server import RunningServer
from moa_server.service import fetch
from moa_server.service.fetch import CompanionFiles
from moa_server.settings import ServerSettings
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter.companion import Companion, cache_file, confidence_beside, write_confidence
from moa_shared.drafting import CHAIN, draft_chain
from moa_shared.drafting.confidence import LearnedConfidence
from moa_shared.errors import ChecksumError, MismatchError, NotFoundError, ProtocolError, UnavailableError
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.models.network.network import Network
from moa_shared.models.weights.weights import EMBEDDINGS
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, SETTINGS, Screen, talking, talking_over_a_link, watch
from tests.net.fetch_source import Source, make_source
from tests.net.server_peer import CONTEXT, IDENTITY, VOCAB, plain_text, serving
from tests.support import fake_hub, tiny_gguf
from tests.support.messages import says, steady
from tests.support.model_places import use_hub_cache
from tests.support.tiny_gguf import GgufWriter, write_gguf
from tests.support.tiny_models import WORDS, ModelWeights, save_tiny_model, save_tokenizer, tiny_model

WRITING = DraftingSettings(standalone=StandaloneRule("auto"))
ITSELF, ANOTHER = 3, 4  # seeds of the tiny target and of another model


def companion(seed: int) -> Companion:
    """A tiny model: the target itself, or one that rarely agrees with it."""
    model = tiny_model(seed=seed, max_position_embeddings=CONTEXT)
    files = SimpleNamespace(target_id="small", fingerprint="", config=model.config)
    network = Network(ModelWeights(model), model.config, plain=True)
    return Companion(cast("Any", files), cast("Any", None), network, VOCAB, F32)


def with_companion(target: KernelTarget, seed: int, *, beside: str = "none", drafts: bool = True) -> Device:
    """A device with a companion, alone or beside another drafter."""
    drafter = CompanionDrafter(
        companion(seed), lambda state, sampling: draft_chain(state, 4, sampling), shape=CHAIN, drafts=drafts
    )
    held = device(target, beside)
    online: ClientDrafter | None = held.drafting.drafter
    return held.with_drafting(drafter=drafter if online is None else CompanionPair(online, drafter))


@pytest.mark.parametrize("beside", ["none", "chain", "tree of N = 1", "lookup"])
async def test_a_companion_that_says_what_the_target_says_has_all_its_words_kept(
    target: KernelTarget, beside: str
) -> None:
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    screen = Screen()
    corrected: list[Event] = []
    alone = 20
    held = with_companion(target, ITSELF, beside=beside)
    async with talking_over_a_link(target, WRITING, held=held) as (link, engine):

        async def cut_and_heal(event: Event) -> None:
            nonlocal alone
            corrected.extend([event] if isinstance(event, Corrected) else [])
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts += 1
                alone = min(alone, len(expected) - len(screen.committed) - 4)  # on a busy machine less may be left
                await link.cut("both")
            elif len(screen.provisional) == alone:
                await link.heal()

        await watch(engine, screen, on_event=cut_and_heal)
        assert screen.committed == expected
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert screen.most_provisional >= alone
        assert not corrected
        assert engine.figures.kept >= alone


async def test_a_companion_that_errs_is_corrected_and_the_text_is_the_target_s(target: KernelTarget) -> None:
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    screen = Screen()
    held = with_companion(target, ANOTHER, drafts=False)
    async with talking_over_a_link(target, WRITING, held=held) as (link, engine):

        async def cut_and_heal(event: Event) -> None:
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts += 1
                await link.cut("both")
            elif len(screen.provisional) == 12:
                await link.heal()

        await watch(engine, screen, on_event=cut_and_heal)
        assert screen.committed == expected
        assert screen.most_provisional >= 12
        withdrawn = engine.answers.withdrawn
        assert withdrawn is not None
        events = engine.keep(lambda _: PROMPT, SETTINGS)
        assert [type(event) for event in events] == [Committed, Ended]
        answer = list(withdrawn.tokens)
        assert answer != expected[: len(answer)]
        assert list(engine.conversation.answer) == answer
        later = Screen()
        await watch(engine, later, [5, 6])
        assert (
            later.committed == plain_text(target, [*PROMPT, *answer, 5, 6], SETTINGS)[0]
        )  # its context is what was kept


async def test_a_companion_begins_an_answer_whose_question_no_server_has_read(
    target: KernelTarget, server: RunningServer
) -> None:
    short = AnswerSettings(Sampling(0.7, seed=4), max_tokens=20, ignore_end_of_text=True)
    screen = Screen()
    async with talking(
        target, f"127.0.0.1:{server.port}", WRITING, held=with_companion(target, ITSELF), offline=True
    ) as engine:
        await watch(engine, screen, settings=short)
        assert screen.end == Ended(Finish.MAX_TOKENS, provisional=True)
        assert not screen.held_back
        engine.go_online()
        [settled] = [event async for event in engine.settle() if isinstance(event, Settled)]
        assert list(settled.tokens) == screen.provisional == plain_text(target, PROMPT, short)[0]
        assert not settled.changed


class Standing:
    """A device with nothing but a companion, and what it takes to continue with a server's model."""

    def __init__(self, target: KernelTarget, *, fits: bool = True) -> None:
        own = with_companion(target, ITSELF)
        own.identity.target_id, own.identity.target_fingerprint = "small", b"s" * 32
        self.device = replace(own, stands_in=True, files=cast("Any", SimpleNamespace(target_id="small")))
        self.fits = fits

    async def adopt(self, served: pb.DescribeResponse, device: Device) -> Device:
        if not self.fits:
            raise MismatchError("small cannot be a companion of tiny: token 5 is 'a' there and 'b' here.")
        identity = pb.Identity()
        identity.CopyFrom(served.identity)
        identity.drafter_fingerprint = b""
        files = cast("Any", SimpleNamespace(target_id=served.identity.target_id))
        return replace(device, stands_in=False, files=files, identity=identity).with_drafting(is_refused=True)


async def test_what_was_written_before_any_server_was_seen_is_continued_by_the_first(
    target: KernelTarget, server: RunningServer
) -> None:
    screen, standing = Screen(), Standing(target)
    address = f"127.0.0.1:{server.port}"
    async with connect([Server(address, 5.0, 20.0)]) as link:
        engine = ClientEngine(link, standing.device, VOCAB, Codec.INT4, WRITING, offline=True, adopt=standing.adopt)

        async def come_online(event: Event) -> None:
            if len(screen.provisional) >= 12:
                engine.go_online()

        await watch(engine, screen, on_event=come_online)
        # A companion so small may have ended the answer before the server was there.
        later = [token async for event in engine.settle() if isinstance(event, Settled) for token in event.tokens]
        await engine.close()
    assert screen.committed + later == plain_text(target, PROMPT, SETTINGS)[0]
    assert engine.device.identity.target_fingerprint == IDENTITY.target_fingerprint
    [notice] = [each for each in screen.notices if isinstance(each, ServerChanged)]
    assert steady(notice.message) == snapshot(
        "127.0.0.1:PORT serves tiny, which continues what small on this device has written."
    )


async def test_a_server_with_another_vocabulary_is_named_once_and_the_companion_writes_on(
    target: KernelTarget, server: RunningServer
) -> None:
    screen, standing = Screen(), Standing(target, fits=False)
    address = f"127.0.0.1:{server.port}"
    async with connect([Server(address, 5.0, 20.0)]) as link:
        engine = ClientEngine(link, standing.device, VOCAB, Codec.INT4, WRITING, adopt=standing.adopt)
        await watch(engine, screen)
        assert screen.end == Ended(Finish.MAX_TOKENS, provisional=True)
        assert screen.provisional == plain_text(target, PROMPT, SETTINGS)[0]
        assert LinkState.GOOD not in screen.states
        assert [each.message for each in screen.notices if isinstance(each, ServerChanged)] == snapshot(
            [
                "small cannot be a companion of tiny: token 5 is 'a' there and 'b' here. Start the client with the server's model and drafter, or connect to another server."
            ]
        )
        await engine.close()


__all__ = ["write_gguf"]
QUIET = SilentProgress()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "small", seed=9, max_position_embeddings=128)


@asynccontextmanager
async def offering(model: Path, companion: object, tmp_path: Path, **changes: Any) -> AsyncIterator[Fleet]:
    settings = ServerSettings(
        model=str(model), companion=str(companion), drafter="none", execution="int8", port=0,
        cache_dir=tmp_path / "server", **changes,
    )  # fmt: skip
    host = load_host(settings, QUIET)
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 5.0, 10.0)]) as link:
        yield link


def settings_at(tmp_path: Path) -> ClientSettings:
    return ClientSettings(cache_dir=tmp_path / "client")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fingerprint(path: Path, tmp_path: Path) -> str:
    return resolve(str(path), tmp_path / "server").fingerprint


async def test_a_folder_comes_whole_and_only_once(source: Source, small: Path, tmp_path: Path) -> None:
    async with offering(source.model, small, tmp_path) as link:
        served = await link.describe()
        told = served.companion
        assert (told.name, told.family, told.hub) == ("small", "llama", "")
        assert told.bytes == sum(map(len, contents(small).values()))
        assert offered_words(told) == f"small ({told.bytes / 1000:.3g} kB)"
        assert find_offered(settings_at(tmp_path), told) is None
        files = await take_offered(settings_at(tmp_path), link, served, QUIET)
        again = await take_offered(settings_at(tmp_path), Fleet([Server("127.0.0.1:1", 1.0, 1.0)]), served, QUIET)
    assert again == files == find_offered(settings_at(tmp_path), told)
    assert files.fingerprint == told.fingerprint.hex() == fingerprint(small, tmp_path)
    theirs = WeightReader(resolve(str(small), tmp_path / "server")).array(EMBEDDINGS)
    assert (WeightReader(files).array(EMBEDDINGS) == theirs).all()


async def test_a_gguf_file_comes_without_its_name(
    write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for heads in ("HEADS", "KV_HEADS"):  # of 32 numbers, which the kernels compute
        monkeypatch.setattr(tiny_gguf, heads, 1)
    target, secret = (write_gguf(f"{name}.gguf", seed=len(name), rotated=32) for name in ("target", "of-somebody"))
    root = tmp_path / "server"
    models = [resolve(str(path), root) for path in (secret, target)]
    measured, (small, large) = LearnedConfidence(1.25, 20.0), (model.fingerprint for model in models)
    write_confidence(cache_file(small, large, root), measured, small, large)
    async with offering(target, secret, tmp_path) as link:
        served = await link.describe()
        files = await take_offered(settings_at(tmp_path), link, served, QUIET)
    assert [path.name for path in files.weights] == ["model-00001-of-00001.gguf"]
    assert files.weights[0].read_bytes() == secret.read_bytes()
    assert files.fingerprint == fingerprint(secret, tmp_path)
    assert find_offered(settings_at(tmp_path), served.companion) == files
    assert confidence_beside(files, models[1], tmp_path / "client") == measured  # as the operator has measured it


def test_another_vocabulary_is_refused_before_the_target_is_loaded(source: Source, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", seed=9)
    save_tokenizer(other, [*WORDS[:7], "gravity", *WORDS[8:]])
    settings = ServerSettings(model=str(source.model), companion=str(other), cache_dir=tmp_path / "server")
    with says(
        MismatchError,
        "other cannot be a companion of model: token 7 is 'w7' there and 'gravity' here",
    ):
        load_host(settings, QUIET, load=never)
    with pytest.raises(NotFoundError, match="There is no model '/nowhere'"):
        load_host(replace(settings, companion="/nowhere"), QUIET, load=never)


def never(files: ModelFiles, settings: ServerSettings, progress: object) -> Any:
    raise AssertionError("the target was loaded")


@pytest.mark.parametrize("fate", ["vanishes", "changes"])
async def test_a_file_that_is_no_longer_what_was_offered_is_not_given_out(
    source: Source, small: Path, tmp_path: Path, fate: str
) -> None:
    async with offering(source.model, small, tmp_path) as link:
        served, weights = await link.describe(), small / "model.safetensors"
        if fate == "vanishes":
            weights.unlink()
        else:
            weights.write_bytes(weights.read_bytes()[::-1])
        with pytest.raises(
            NotFoundError, match=r"no longer has its file model.safetensors: .*Tell whoever runs it"
        ) as no:
            await take_offered(settings_at(tmp_path), link, served, QUIET)
        assert ("No such file" if fate == "vanishes" else "has changed") in no.value.message
        assert (await link.describe()).identity == served.identity  # the server goes on
    assert find_offered(settings_at(tmp_path), served.companion) is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/secret/path"), "cannot read its own files: Permission denied"),
        (NotFoundError("There is no file /secret/path."), "no longer has a file that clients fetch"),
    ],
    ids=["not readable", "gone"],
)
async def test_a_companion_that_is_gone_at_first_leaves_the_devices_half(
    source: Source, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(self: CompanionFiles, root: Path) -> fetch.Offer:
        raise error

    monkeypatch.setattr(CompanionFiles, "offer", fail)
    async with offering(source.model, small, tmp_path) as link:
        served = await link.describe()
        assert served.manifest_sha256
        assert not served.companion.manifest_sha256
        with pytest.raises(Exception, match=said) as refused:
            await take_offered(settings_at(tmp_path), link, served, QUIET)
        assert "secret" not in str(refused.value)


class Liar(Server):
    """Says that its companion's first file is a drafter."""

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        async for message in super().fetch(request):
            message.manifest.files[0].kind = pb.PART_DRAFTER
            yield message


async def test_what_a_server_must_not_offer(source: Source, small: Path, tmp_path: Path) -> None:
    async with offering(source.model, small, tmp_path) as link:
        served, liar = await link.describe(), Liar(link.address, 5.0, 10.0)
        served.companion.manifest_sha256 = b""
        with pytest.raises(ProtocolError, match="Expected files of a companion"):
            await take_offered(settings_at(tmp_path), Fleet([liar]), served, QUIET)
        await liar.close()
        served.companion.manifest_sha256 = b"a" * 32
        with pytest.raises(ChecksumError, match="differs from the one it described"):
            await take_offered(settings_at(tmp_path), link, served, QUIET)
        served.companion.manifest_sha256 = b""
        served.companion.fingerprint = b"f" * 32
        with pytest.raises(MismatchError, match="companion small"):
            await take_offered(settings_at(tmp_path), link, served, QUIET)


async def test_one_of_the_hub_comes_from_there_and_else_from_the_server(
    source: Source, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    use_hub_cache(monkeypatch, tmp_path / "hub")
    hub = fake_hub.FakeHub({"somebody/small": contents(small)})
    notes: list[str] = []
    monkeypatch.setattr(SilentProgress, "note", lambda _, text: notes.append(text))
    with fake_hub.serving(hub):
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        files_at = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files_at)
        async with offering(source.model, "somebody/small", tmp_path) as link:
            served = await link.describe()
            assert served.companion.hub == f"hub:somebody/small@{fake_hub.COMMIT}"
            nobody = Fleet([Server("127.0.0.1:1", 1.0, 1.0)])
            use_hub_cache(monkeypatch, tmp_path / "device")
            files = await take_offered(settings_at(tmp_path), nobody, served, QUIET)
            assert files.fingerprint == served.companion.fingerprint.hex()
            assert find_offered(settings_at(tmp_path), served.companion) == files
            assert notes[-1].startswith("The companion somebody/small (")
            use_hub_cache(monkeypatch, tmp_path / "another")
            hub.repos.clear()
            files = await take_offered(settings_at(tmp_path), link, served, QUIET)
            assert files.folder.parent.name == "fetched"
            assert notes[-1].endswith("So it comes from the server.")


def test_a_server_names_no_path_of_this_device(small: Path, tmp_path: Path) -> None:
    for name in (str(small), "default", f"hub:{small}", "hub:../small"):
        offered = pb.Companion(fingerprint=b"f" * 32, hub=name)
        assert companion_offer._on_hub(offered) is None


async def begin(model: Path, link: Fleet, tmp_path: Path, *, is_there: bool = True) -> Started:
    """What a chat with --companion auto starts with."""
    settings = ClientSettings(server=link.address, companion="auto", cache_dir=tmp_path / "client")
    reached = Reached(await link.describe(), 0.0) if is_there else Reached(absent=UnavailableError("It is away."))
    return load(settings, reached, await find(settings, link, reached, QUIET), QUIET)


async def test_a_chat_takes_the_companion_that_is_offered_now_and_keeps_it_without_the_server(
    source: Source, small: Path, tmp_path: Path
) -> None:
    another = save_tiny_model(tmp_path / "another", seed=5)
    for offered in (small, another):  # the second server is asked at the same address
        async with offering(source.model, offered, tmp_path) as link:
            started = await begin(source.model, link, tmp_path)
            away = await begin(source.model, link, tmp_path, is_there=False)
        for each in (started, away):
            assert each.device.companion is not None
            assert each.device.companion.fingerprint == fingerprint(offered, tmp_path)
            assert each.device.drafting.new_drafter is not None
