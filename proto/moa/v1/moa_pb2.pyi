from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PartKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PART_UNSPECIFIED: _ClassVar[PartKind]
    PART_TEXT: _ClassVar[PartKind]
    PART_EMBEDDINGS_BF16: _ClassVar[PartKind]
    PART_HEAD_BF16: _ClassVar[PartKind]
    PART_LAYERS_BF16: _ClassVar[PartKind]
    PART_DRAFTER: _ClassVar[PartKind]
    PART_EMBEDDINGS_PACKED: _ClassVar[PartKind]
    PART_HEAD_PACKED: _ClassVar[PartKind]
    PART_LAYERS_PACKED: _ClassVar[PartKind]
    PART_COMPANION: _ClassVar[PartKind]

class Finish(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_UNSPECIFIED: _ClassVar[Finish]
    FINISH_END_OF_TEXT: _ClassVar[Finish]
    FINISH_MAX_TOKENS: _ClassVar[Finish]
    FINISH_STOP: _ClassVar[Finish]
    FINISH_CONTEXT: _ClassVar[Finish]
    FINISH_CANCELLED: _ClassVar[Finish]
    FINISH_DRAINING: _ClassVar[Finish]
    FINISH_LOOP: _ClassVar[Finish]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNKNOWN: _ClassVar[Pooling]
    MEAN: _ClassVar[Pooling]
    LAST: _ClassVar[Pooling]

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_UNSPECIFIED: _ClassVar[Codec]
    CODEC_BF16: _ClassVar[Codec]
    CODEC_INT8: _ClassVar[Codec]
    CODEC_INT4: _ClassVar[Codec]

class Plane(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLANE_MEMORY: _ClassVar[Plane]
    PLANE_REUSED_STATE: _ClassVar[Plane]
PART_UNSPECIFIED: PartKind
PART_TEXT: PartKind
PART_EMBEDDINGS_BF16: PartKind
PART_HEAD_BF16: PartKind
PART_LAYERS_BF16: PartKind
PART_DRAFTER: PartKind
PART_EMBEDDINGS_PACKED: PartKind
PART_HEAD_PACKED: PartKind
PART_LAYERS_PACKED: PartKind
PART_COMPANION: PartKind
FINISH_UNSPECIFIED: Finish
FINISH_END_OF_TEXT: Finish
FINISH_MAX_TOKENS: Finish
FINISH_STOP: Finish
FINISH_CONTEXT: Finish
FINISH_CANCELLED: Finish
FINISH_DRAINING: Finish
FINISH_LOOP: Finish
POOLING_UNKNOWN: Pooling
MEAN: Pooling
LAST: Pooling
CODEC_UNSPECIFIED: Codec
CODEC_BF16: Codec
CODEC_INT8: Codec
CODEC_INT4: Codec
PLANE_MEMORY: Plane
PLANE_REUSED_STATE: Plane

class DescribeRequest(_message.Message):
    __slots__ = ("prefix_hashes",)
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    prefix_hashes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, prefix_hashes: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol_version", "server_version", "identity", "limits", "codecs", "execution", "drafters", "step_ms", "row_ms", "manifest_sha256", "load", "cached_tokens", "read_ms", "servers", "companion", "raw_text_only")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    ROW_MS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READ_MS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    COMPANION_FIELD_NUMBER: _ClassVar[int]
    RAW_TEXT_ONLY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    server_version: str
    identity: Identity
    limits: Limits
    codecs: _containers.RepeatedScalarFieldContainer[Codec]
    execution: Execution
    drafters: _containers.RepeatedCompositeFieldContainer[Drafter]
    step_ms: float
    row_ms: float
    manifest_sha256: bytes
    load: float
    cached_tokens: int
    read_ms: float
    servers: _containers.RepeatedScalarFieldContainer[str]
    companion: Companion
    raw_text_only: bool
    def __init__(self, protocol_version: _Optional[int] = ..., server_version: _Optional[str] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., codecs: _Optional[_Iterable[_Union[Codec, str]]] = ..., execution: _Optional[_Union[Execution, _Mapping]] = ..., drafters: _Optional[_Iterable[_Union[Drafter, _Mapping]]] = ..., step_ms: _Optional[float] = ..., row_ms: _Optional[float] = ..., manifest_sha256: _Optional[bytes] = ..., load: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., read_ms: _Optional[float] = ..., servers: _Optional[_Iterable[str]] = ..., companion: _Optional[_Union[Companion, _Mapping]] = ..., raw_text_only: _Optional[bool] = ...) -> None: ...

class Execution(_message.Message):
    __slots__ = ("level", "exact", "details")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    level: str
    exact: bool
    details: str
    def __init__(self, level: _Optional[str] = ..., exact: _Optional[bool] = ..., details: _Optional[str] = ...) -> None: ...

class Drafter(_message.Message):
    __slots__ = ("name", "fingerprint", "reused_layers", "tokens_a_forward")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    REUSED_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_A_FORWARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: bytes
    reused_layers: int
    tokens_a_forward: float
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[bytes] = ..., reused_layers: _Optional[int] = ..., tokens_a_forward: _Optional[float] = ...) -> None: ...

class Companion(_message.Message):
    __slots__ = ("name", "fingerprint", "family", "bytes", "manifest_sha256", "hub")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    HUB_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: bytes
    family: str
    bytes: int
    manifest_sha256: bytes
    hub: str
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[bytes] = ..., family: _Optional[str] = ..., bytes: _Optional[int] = ..., manifest_sha256: _Optional[bytes] = ..., hub: _Optional[str] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("target_id", "target_fingerprint", "tokenizer_hash", "drafter_fingerprint", "execution")
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    target_id: str
    target_fingerprint: bytes
    tokenizer_hash: bytes
    drafter_fingerprint: bytes
    execution: bytes
    def __init__(self, target_id: _Optional[str] = ..., target_fingerprint: _Optional[bytes] = ..., tokenizer_hash: _Optional[bytes] = ..., drafter_fingerprint: _Optional[bytes] = ..., execution: _Optional[bytes] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("context_tokens", "draft_nodes", "frame_bytes", "sessions", "constraints")
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODES_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    context_tokens: int
    draft_nodes: int
    frame_bytes: int
    sessions: int
    constraints: bool
    def __init__(self, context_tokens: _Optional[int] = ..., draft_nodes: _Optional[int] = ..., frame_bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., constraints: _Optional[bool] = ...) -> None: ...

class FetchDrafterRequest(_message.Message):
    __slots__ = ("name", "offset", "sha256", "companion")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    COMPANION_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    sha256: bytes
    companion: bool
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., sha256: _Optional[bytes] = ..., companion: _Optional[bool] = ...) -> None: ...

class FetchDrafterResponse(_message.Message):
    __slots__ = ("manifest", "chunk")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    manifest: PartManifest
    chunk: PartChunk
    def __init__(self, manifest: _Optional[_Union[PartManifest, _Mapping]] = ..., chunk: _Optional[_Union[PartChunk, _Mapping]] = ...) -> None: ...

class PartManifest(_message.Message):
    __slots__ = ("identity", "files")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    files: _containers.RepeatedCompositeFieldContainer[PartFile]
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., files: _Optional[_Iterable[_Union[PartFile, _Mapping]]] = ...) -> None: ...

class PartFile(_message.Message):
    __slots__ = ("name", "kind", "size", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: PartKind
    size: int
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[PartKind, str]] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class PartChunk(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop", "ignore_end_of_text", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty", "logit_bias", "loop_guard", "constraint", "chances")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_END_OF_TEXT_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPEAT_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPEAT_LAST_N_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOOP_GUARD_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    CHANCES_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_end_of_text: bool
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    loop_guard: bool
    constraint: Constraint
    chances: WantedChances
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_end_of_text: _Optional[bool] = ..., min_p: _Optional[float] = ..., repeat_penalty: _Optional[float] = ..., repeat_last_n: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., loop_guard: _Optional[bool] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., chances: _Optional[_Union[WantedChances, _Mapping]] = ...) -> None: ...

class WantedChances(_message.Message):
    __slots__ = ("likeliest", "processed")
    LIKELIEST_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_FIELD_NUMBER: _ClassVar[int]
    likeliest: int
    processed: bool
    def __init__(self, likeliest: _Optional[int] = ..., processed: _Optional[bool] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("kind", "text")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Constraint.Kind]
        KIND_JSON_SCHEMA: _ClassVar[Constraint.Kind]
        KIND_JSON_OBJECT: _ClassVar[Constraint.Kind]
        KIND_REGEX: _ClassVar[Constraint.Kind]
        KIND_CHOICE: _ClassVar[Constraint.Kind]
        KIND_LARK: _ClassVar[Constraint.Kind]
    KIND_UNSPECIFIED: Constraint.Kind
    KIND_JSON_SCHEMA: Constraint.Kind
    KIND_JSON_OBJECT: Constraint.Kind
    KIND_REGEX: Constraint.Kind
    KIND_CHOICE: Constraint.Kind
    KIND_LARK: Constraint.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: Constraint.Kind
    text: str
    def __init__(self, kind: _Optional[_Union[Constraint.Kind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("tokens", "sampling", "server_drafts", "given")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SERVER_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    server_drafts: bool
    given: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., server_drafts: _Optional[bool] = ..., given: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("tokens", "finish", "chances")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CHANCES_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finish: Finish
    chances: _containers.RepeatedCompositeFieldContainer[TokenChances]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., finish: _Optional[_Union[Finish, str]] = ..., chances: _Optional[_Iterable[_Union[TokenChances, _Mapping]]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("values", "pooling", "trained")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    pooling: Pooling
    trained: bool
    def __init__(self, values: _Optional[_Iterable[float]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., trained: _Optional[bool] = ...) -> None: ...

class ClientFrame(_message.Message):
    __slots__ = ("open", "ask", "draft", "stop", "credit", "bye", "set_codec", "beat", "ack", "set_memory")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    SET_CODEC_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    SET_MEMORY_FIELD_NUMBER: _ClassVar[int]
    open: Open
    ask: Ask
    draft: Draft
    stop: Stop
    credit: Credit
    bye: Bye
    set_codec: SetCodec
    beat: Beat
    ack: Ack
    set_memory: SetMemory
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., set_codec: _Optional[_Union[SetCodec, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., set_memory: _Optional[_Union[SetMemory, _Mapping]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("opened", "verdict", "memory", "go_away", "beat")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    memory: Memory
    go_away: GoAway
    beat: Beat
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "identity", "codecs", "resume_token", "tokens", "reused_state", "run_ahead", "memory_from", "ask", "client_version", "credit_bytes", "server_drafts", "thin_memory")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSED_STATE_FIELD_NUMBER: _ClassVar[int]
    RUN_AHEAD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FROM_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVER_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    THIN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    identity: Identity
    codecs: _containers.RepeatedScalarFieldContainer[Codec]
    resume_token: bytes
    tokens: _containers.RepeatedScalarFieldContainer[int]
    reused_state: bool
    run_ahead: bool
    memory_from: int
    ask: Ask
    client_version: str
    credit_bytes: int
    server_drafts: bool
    thin_memory: ThinMemory
    def __init__(self, protocol_version: _Optional[int] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., codecs: _Optional[_Iterable[_Union[Codec, str]]] = ..., resume_token: _Optional[bytes] = ..., tokens: _Optional[_Iterable[int]] = ..., reused_state: _Optional[bool] = ..., run_ahead: _Optional[bool] = ..., memory_from: _Optional[int] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., client_version: _Optional[str] = ..., credit_bytes: _Optional[int] = ..., server_drafts: _Optional[bool] = ..., thin_memory: _Optional[_Union[ThinMemory, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("resume_token", "cached_tokens", "codec", "limits", "drafter_fingerprint", "new_execution", "server_drafts", "thin_memory", "servers")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NEW_EXECUTION_FIELD_NUMBER: _ClassVar[int]
    SERVER_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    THIN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    resume_token: bytes
    cached_tokens: int
    codec: Codec
    limits: Limits
    drafter_fingerprint: bytes
    new_execution: NewExecution
    server_drafts: bool
    thin_memory: bool
    servers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resume_token: _Optional[bytes] = ..., cached_tokens: _Optional[int] = ..., codec: _Optional[_Union[Codec, str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., drafter_fingerprint: _Optional[bytes] = ..., new_execution: _Optional[_Union[NewExecution, _Mapping]] = ..., server_drafts: _Optional[bool] = ..., thin_memory: _Optional[bool] = ..., servers: _Optional[_Iterable[str]] = ...) -> None: ...

class NewExecution(_message.Message):
    __slots__ = ("fingerprint", "execution", "end_of_text")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    END_OF_TEXT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    execution: Execution
    end_of_text: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, fingerprint: _Optional[bytes] = ..., execution: _Optional[_Union[Execution, _Mapping]] = ..., end_of_text: _Optional[_Iterable[int]] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("base", "prefix_hash", "tokens", "sampling", "answer_start", "provisional", "id", "traceparent")
    BASE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ANSWER_START_FIELD_NUMBER: _ClassVar[int]
    PROVISIONAL_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    base: int
    prefix_hash: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    answer_start: int
    provisional: Draft
    id: int
    traceparent: str
    def __init__(self, base: _Optional[int] = ..., prefix_hash: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., answer_start: _Optional[int] = ..., provisional: _Optional[_Union[Draft, _Mapping]] = ..., id: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("epoch", "base", "prefix_hash", "first_node", "tokens", "parents")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    FIRST_NODE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    base: int
    prefix_hash: int
    first_node: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., base: _Optional[int] = ..., prefix_hash: _Optional[int] = ..., first_node: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: int
    def __init__(self, committed: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("base", "prefix_hash", "tokens", "accepted", "finish", "drafted", "stale_nodes", "step_hundredths", "memory", "ask", "server_drafted", "server_accepted", "least_percent", "chances", "shared")
    BASE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    STALE_NODES_FIELD_NUMBER: _ClassVar[int]
    STEP_HUNDREDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    SERVER_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    SERVER_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    LEAST_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CHANCES_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    base: int
    prefix_hash: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    accepted: int
    finish: Finish
    drafted: int
    stale_nodes: int
    step_hundredths: int
    memory: _containers.RepeatedCompositeFieldContainer[Memory]
    ask: int
    server_drafted: int
    server_accepted: int
    least_percent: int
    chances: _containers.RepeatedCompositeFieldContainer[TokenChances]
    shared: bool
    def __init__(self, base: _Optional[int] = ..., prefix_hash: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., accepted: _Optional[int] = ..., finish: _Optional[_Union[Finish, str]] = ..., drafted: _Optional[int] = ..., stale_nodes: _Optional[int] = ..., step_hundredths: _Optional[int] = ..., memory: _Optional[_Iterable[_Union[Memory, _Mapping]]] = ..., ask: _Optional[int] = ..., server_drafted: _Optional[int] = ..., server_accepted: _Optional[int] = ..., least_percent: _Optional[int] = ..., chances: _Optional[_Iterable[_Union[TokenChances, _Mapping]]] = ..., shared: _Optional[bool] = ...) -> None: ...

class TokenChances(_message.Message):
    __slots__ = ("chosen", "tokens", "chances")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHANCES_FIELD_NUMBER: _ClassVar[int]
    chosen: float
    tokens: _containers.RepeatedScalarFieldContainer[int]
    chances: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, chosen: _Optional[float] = ..., tokens: _Optional[_Iterable[int]] = ..., chances: _Optional[_Iterable[float]] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("start", "count", "codec", "payload", "plane", "prefix_hash")
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    start: int
    count: int
    codec: Codec
    payload: bytes
    plane: Plane
    prefix_hash: int
    def __init__(self, start: _Optional[int] = ..., count: _Optional[int] = ..., codec: _Optional[_Union[Codec, str]] = ..., payload: _Optional[bytes] = ..., plane: _Optional[_Union[Plane, str]] = ..., prefix_hash: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("base", "ask")
    BASE_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    base: int
    ask: int
    def __init__(self, base: _Optional[int] = ..., ask: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class SetCodec(_message.Message):
    __slots__ = ("codec",)
    CODEC_FIELD_NUMBER: _ClassVar[int]
    codec: Codec
    def __init__(self, codec: _Optional[_Union[Codec, str]] = ...) -> None: ...

class SetMemory(_message.Message):
    __slots__ = ("thin",)
    THIN_FIELD_NUMBER: _ClassVar[int]
    thin: ThinMemory
    def __init__(self, thin: _Optional[_Union[ThinMemory, _Mapping]] = ...) -> None: ...

class ThinMemory(_message.Message):
    __slots__ = ("states", "every")
    STATES_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    states: int
    every: int
    def __init__(self, states: _Optional[int] = ..., every: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("stamp", "reply")
    STAMP_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    stamp: int
    reply: bool
    def __init__(self, stamp: _Optional[int] = ..., reply: _Optional[bool] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("resume_token", "reason", "servers")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    resume_token: bytes
    reason: str
    servers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resume_token: _Optional[bytes] = ..., reason: _Optional[str] = ..., servers: _Optional[_Iterable[str]] = ...) -> None: ...
