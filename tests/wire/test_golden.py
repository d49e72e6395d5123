"""Golden bytes: what is on the wire today must be readable tomorrow.

A failure here means that the contract changed: give the field a new number, or raise PROTOCOL_VERSION.
"""

import numpy as np
import pytest
from google.protobuf.message import Message
from moa.v1 import moa_pb2 as pb
from moa_shared.protocol.memory_codec import Codec, encode
from moa_shared.protocol.messages import Finish

IDENTITY = pb.Identity(
    target_id="t",
    target_fingerprint=b"\x01\x02",
    tokenizer_hash=b"\x03",
    drafter_fingerprint=b"\x04",
    execution=b"\x05",
)
SAMPLING = pb.Sampling(
    temperature=0.5, top_k=40, top_p=0.25, seed=7, max_tokens=9, stop=["\n"], ignore_end_of_text=True
)
PENALTIES = pb.Sampling(
    min_p=0.5,
    repeat_penalty=1.5,
    repeat_last_n=-1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    logit_bias={300: -100.0},
    loop_guard=True,
)
DRAFT = pb.Draft(epoch=1, base=300, prefix_hash=0x01020304, first_node=2, tokens=[5, 49151], parents=[0, 3])
ASK = pb.Ask(base=1, prefix_hash=2, tokens=[3], sampling=SAMPLING, answer_start=2, id=3)
ROWS = np.array([[1.0, -2.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]], np.float32)

FRAMES: dict[str, Message] = {
    "open": pb.ClientFrame(
        open=pb.Open(
            protocol_version=4,
            identity=IDENTITY,
            codecs=[pb.CODEC_INT4],
            resume_token=b"r",
            tokens=[1, 128],
            reused_state=True,
            run_ahead=True,
            memory_from=3,
            ask=ASK,
            client_version="0.1.0",
            credit_bytes=65536,
        )
    ),
    "open_for_server_drafts": pb.ClientFrame(open=pb.Open(protocol_version=4, server_drafts=True)),
    "ask": pb.ClientFrame(ask=ASK),
    "draft": pb.ClientFrame(draft=DRAFT),
    "chain": pb.ClientFrame(draft=pb.Draft(base=5, prefix_hash=1, tokens=[1, 2, 3])),
    "draft_that_continues": pb.ClientFrame(draft=pb.Draft(tokens=[49151])),
    "stop": pb.ClientFrame(stop=pb.Stop(base=4, ask=3)),
    "credit": pb.ClientFrame(credit=pb.Credit(bytes=4096)),
    "bye": pb.ClientFrame(bye=pb.Bye()),
    "set_codec": pb.ClientFrame(set_codec=pb.SetCodec(codec=pb.CODEC_INT8)),
    "set_memory": pb.ClientFrame(set_memory=pb.SetMemory(thin=pb.ThinMemory(states=4, every=16))),
    "set_memory_to_all": pb.ClientFrame(set_memory=pb.SetMemory()),
    "open_for_thin_memory": pb.ClientFrame(open=pb.Open(thin_memory=pb.ThinMemory(states=4, every=16))),
    "beat": pb.ClientFrame(beat=pb.Beat(stamp=1, reply=True)),
    "ack": pb.ClientFrame(ack=pb.Ack(committed=6)),
    "opened_by_a_drafting_server": pb.ServerFrame(opened=pb.Opened(server_drafts=True, thin_memory=True)),
    "verdict_of_a_shared_forward": pb.ServerFrame(verdict=pb.Verdict(shared=True)),
    "opened": pb.ServerFrame(
        opened=pb.Opened(
            resume_token=b"r",
            cached_tokens=2,
            codec=pb.CODEC_BF16,
            limits=pb.Limits(context_tokens=2048, draft_nodes=64, frame_bytes=1, sessions=8),
            drafter_fingerprint=b"\x04",
        )
    ),
    "verdict": pb.ServerFrame(
        verdict=pb.Verdict(
            base=301,
            prefix_hash=3,
            tokens=[7, 8],
            accepted=1,
            finish=pb.FINISH_STOP,
            drafted=5,
            stale_nodes=2,
            step_hundredths=150,
            ask=3,
        )
    ),
    "verdict_that_continues": pb.ServerFrame(
        verdict=pb.Verdict(
            tokens=[49151],
            step_hundredths=1234,
            memory=[
                pb.Memory(codec=pb.CODEC_INT4, payload=b"\x00", prefix_hash=1),
                pb.Memory(codec=pb.CODEC_INT4, payload=b"\x01", plane=pb.PLANE_REUSED_STATE, prefix_hash=1),
            ],
        )
    ),
    "verdict_of_server_drafts": pb.ServerFrame(
        verdict=pb.Verdict(tokens=[7, 8], accepted=1, drafted=5, server_drafted=3, server_accepted=1, least_percent=25)
    ),
    "memory": pb.ServerFrame(
        memory=pb.Memory(
            start=1,
            count=2,
            codec=pb.CODEC_INT4,
            payload=b"\x00\x01",
            plane=pb.PLANE_REUSED_STATE,
            prefix_hash=0x01020304,
        )
    ),
    "opened_elsewhere": pb.ServerFrame(
        opened=pb.Opened(
            new_execution=pb.NewExecution(
                fingerprint=b"\x05",
                execution=pb.Execution(level="int8", exact=True, details="avx2"),
                end_of_text=[2, 300],
            )
        )
    ),
    "go_away": pb.ServerFrame(go_away=pb.GoAway(resume_token=b"r", reason="drain")),
    "describe": pb.DescribeResponse(
        protocol_version=4,
        identity=IDENTITY,
        codecs=[pb.CODEC_INT4],
        execution=pb.Execution(level="int8", exact=True, details="avx2"),
        drafters=[pb.Drafter(name="deep", fingerprint=b"\x04", reused_layers=12, tokens_a_forward=2.5)],
        step_ms=10.5,
        row_ms=0.25,
        load=0.75,
    ),
    "generate": pb.GenerateRequest(tokens=[1], sampling=SAMPLING),
    "generate_with_penalties": pb.GenerateRequest(tokens=[1], sampling=PENALTIES),
    "generate_with_drafts": pb.GenerateRequest(tokens=[1], server_drafts=True),
    "generated": pb.GenerateResponse(tokens=[1], finish=pb.FINISH_MAX_TOKENS),
    "generated_a_loop": pb.GenerateResponse(tokens=[1], finish=pb.FINISH_LOOP),
    "embed": pb.EmbedRequest(tokens=[1, 300]),
    "embedded": pb.EmbedResponse(values=[1.0, -0.5], pooling=pb.MEAN, trained=True),
    "fetch": pb.FetchDrafterRequest(name="n", offset=300, sha256=b"\x01"),
    "parts": pb.FetchDrafterResponse(
        manifest=pb.PartManifest(
            identity=IDENTITY, files=[pb.PartFile(name="n", kind=pb.PART_DRAFTER, size=300, sha256=b"\x01")]
        )
    ),
    "part": pb.FetchDrafterResponse(chunk=pb.PartChunk(offset=300, data=b"\x00\x01")),
}
GOLDEN = {
    "open": "0a6a080412100a0174120201021a01032201042a01051a01032201722a030180013001380140034a3808011102000000000000001a0103222409000000000000e03f102819000000000000d03f210700000000000000280932010a3801280238035205302e312e3058808004",
    "open_for_server_drafts": "0a0408046001",
    "ask": "123808011102000000000000001a0103222409000000000000e03f102819000000000000d03f210700000000000000280932010a380128023803",
    "draft": "1a16080110ac021d0403020120022a0405ffff0232020003",
    "chain": "1a0c10051d010000002a03010203",
    "draft_that_continues": "1a052a03ffff02",
    "stop": "220408041003",
    "credit": "2a03088020",
    "bye": "3200",
    "set_codec": "3a020802",
    "set_memory": "52060a0408041010",
    "set_memory_to_all": "5200",
    "open_for_thin_memory": "0a066a0408041010",
    "opened_by_a_drafting_server": "0a0438014001",
    "verdict_of_a_shared_forward": "1203800101",
    "beat": "420408011001",
    "ack": "4a020806",
    "opened": "0a150a01721002180122090880101040180120082a0104",
    "verdict": "121910ad021d030000002202070828013003380540024896015803",
    "verdict_that_continues": "12222203ffff0248d209520a18032201003501000000520c180322010128013501000000",
    "verdict_of_server_drafts": "120e2202070828013805600368017019",
    "memory": "1a110801100218032202000128013504030201",
    "opened_elsewhere": "0a1a32180a0105120e0a04696e743810011a04617678321a0302ac02",
    "go_away": "220a0a01721205647261696e",
    "describe": "08041a100a0174120201021a01032201042a0105320103420e0a04696e743810011a04617678324a100a0464656570120104180c250000204055000028415d0000803e6d0000403f",
    "generate": "0a0101122409000000000000e03f102819000000000000d03f210700000000000000280932010a3801",
    "generate_with_penalties": "0a0101123641000000000000e03f49000000000000f83f500159000000000000e03f61000000000000e0bf6a0c08ac021100000000000059c07001",
    "generate_with_drafts": "0a01011801",
    "generated": "0a01011002",
    "generated_a_loop": "0a01011007",
    "embed": "0a0301ac02",
    "embedded": "0a080000803f000000bf10011801",
    "fetch": "0a016e10ac021a0101",
    "parts": "0a1f0a100a0174120201021a01032201042a0105120b0a016e100718ac02220101",
    "part": "120708ac0212020001",
}

PAYLOADS = {
    Codec.BF16: "803f00c0003f00000000000000000000",
    Codec.INT8: "813c40812000000000000000",
    Codec.INT4: "923e1c8a8888888888888888888888888888000088888888888888888888888888888888",
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_the_bytes_they_were(name: str) -> None:
    frame = FRAMES[name]
    assert frame.SerializeToString(deterministic=True).hex() == GOLDEN[name]
    assert type(frame).FromString(bytes.fromhex(GOLDEN[name])) == frame


@pytest.mark.parametrize("codec", Codec)
def test_memory_payloads_are_the_bytes_they_were(codec: Codec) -> None:
    assert encode(ROWS, codec).hex() == PAYLOADS[codec]


def test_enums_agree_with_ours() -> None:
    assert {item.name: item.value for item in Codec} == {
        name.removeprefix("CODEC_"): value for name, value in pb.Codec.items() if value
    }
    names = {name.removeprefix("FINISH_"): value for name, value in pb.Finish.items() if value}
    assert {item.name: item.value for item in Finish if item} == names
