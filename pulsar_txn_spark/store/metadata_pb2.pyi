from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Position(_message.Message):
    __slots__ = ("ledger", "entry")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ledger: int
    entry: int
    def __init__(self, ledger: _Optional[int] = ..., entry: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("segment", "start", "end")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    segment: str
    start: Position
    end: Position
    def __init__(self, segment: _Optional[str] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., end: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Winner(_message.Message):
    __slots__ = ("segment", "writer", "bound", "last")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    segment: str
    writer: str
    bound: Position
    last: Position
    def __init__(self, segment: _Optional[str] = ..., writer: _Optional[str] = ..., bound: _Optional[_Union[Position, _Mapping]] = ..., last: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("winners", "last_seen", "cause", "messages", "bytes", "digest", "evidence", "histories")
    class LastSeenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class HistoriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WINNERS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    HISTORIES_FIELD_NUMBER: _ClassVar[int]
    winners: _containers.RepeatedCompositeFieldContainer[Winner]
    last_seen: _containers.ScalarMap[str, int]
    cause: str
    messages: int
    bytes: int
    digest: bytes
    evidence: Evidence
    histories: _containers.ScalarMap[str, str]
    def __init__(self, winners: _Optional[_Iterable[_Union[Winner, _Mapping]]] = ..., last_seen: _Optional[_Mapping[str, int]] = ..., cause: _Optional[str] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., digest: _Optional[bytes] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., histories: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("planned", "rows", "fingerprint", "foreign", "plans")
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    planned: bytes
    rows: int
    fingerprint: int
    foreign: bool
    plans: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, planned: _Optional[bytes] = ..., rows: _Optional[int] = ..., fingerprint: _Optional[int] = ..., foreign: bool = ..., plans: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EarlierBatch(_message.Message):
    __slots__ = ("batch_id", "planned")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    planned: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, batch_id: _Optional[int] = ..., planned: _Optional[_Iterable[bytes]] = ...) -> None: ...

class OpRecord(_message.Message):
    __slots__ = ("kind", "segment", "writer", "first", "last", "messages", "bytes")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[OpRecord.Kind]
        WRITE: _ClassVar[OpRecord.Kind]
    KIND_UNSPECIFIED: OpRecord.Kind
    WRITE: OpRecord.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: OpRecord.Kind
    segment: str
    writer: str
    first: Position
    last: Position
    messages: int
    bytes: int
    def __init__(self, kind: _Optional[_Union[OpRecord.Kind, str]] = ..., segment: _Optional[str] = ..., writer: _Optional[str] = ..., first: _Optional[_Union[Position, _Mapping]] = ..., last: _Optional[_Union[Position, _Mapping]] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class BatchedOpRecords(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("txn_id", "name", "record")
        TXN_ID_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        RECORD_FIELD_NUMBER: _ClassVar[int]
        txn_id: str
        name: str
        record: bytes
        def __init__(self, txn_id: _Optional[str] = ..., name: _Optional[str] = ..., record: _Optional[bytes] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[BatchedOpRecords.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[BatchedOpRecords.Item, _Mapping]]] = ...) -> None: ...

class OpReference(_message.Message):
    __slots__ = ("batch_index", "batch_size")
    BATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    batch_index: _containers.RepeatedScalarFieldContainer[int]
    batch_size: int
    def __init__(self, batch_index: _Optional[_Iterable[int]] = ..., batch_size: _Optional[int] = ...) -> None: ...

class Pointer(_message.Message):
    __slots__ = ("batch_id", "txn_id", "nonce", "digest", "decision", "retired_nonces", "owner", "every_batch", "evidence", "before", "also_planned", "replayed_by")
    class Decision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNDECIDED: _ClassVar[Pointer.Decision]
        COMMITTED: _ClassVar[Pointer.Decision]
        ABORTED: _ClassVar[Pointer.Decision]
    UNDECIDED: Pointer.Decision
    COMMITTED: Pointer.Decision
    ABORTED: Pointer.Decision
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    RETIRED_NONCES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EVERY_BATCH_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    ALSO_PLANNED_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_BY_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    txn_id: str
    nonce: str
    digest: bytes
    decision: Pointer.Decision
    retired_nonces: _containers.RepeatedScalarFieldContainer[str]
    owner: str
    every_batch: bool
    evidence: Evidence
    before: EarlierBatch
    also_planned: _containers.RepeatedScalarFieldContainer[bytes]
    replayed_by: str
    def __init__(self, batch_id: _Optional[int] = ..., txn_id: _Optional[str] = ..., nonce: _Optional[str] = ..., digest: _Optional[bytes] = ..., decision: _Optional[_Union[Pointer.Decision, str]] = ..., retired_nonces: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ..., every_batch: bool = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., before: _Optional[_Union[EarlierBatch, _Mapping]] = ..., also_planned: _Optional[_Iterable[bytes]] = ..., replayed_by: _Optional[str] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("id", "log_name", "hash_start", "hash_end", "parents", "children", "state", "sealed_at", "change", "adopted", "erased")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Segment.State]
        ACTIVE: _ClassVar[Segment.State]
        SEALED: _ClassVar[Segment.State]
        DRAINED: _ClassVar[Segment.State]
        DELETED: _ClassVar[Segment.State]
        PLANNED: _ClassVar[Segment.State]
    STATE_UNSPECIFIED: Segment.State
    ACTIVE: Segment.State
    SEALED: Segment.State
    DRAINED: Segment.State
    DELETED: Segment.State
    PLANNED: Segment.State
    ID_FIELD_NUMBER: _ClassVar[int]
    LOG_NAME_FIELD_NUMBER: _ClassVar[int]
    HASH_START_FIELD_NUMBER: _ClassVar[int]
    HASH_END_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEALED_AT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    ERASED_FIELD_NUMBER: _ClassVar[int]
    id: str
    log_name: str
    hash_start: int
    hash_end: int
    parents: _containers.RepeatedScalarFieldContainer[str]
    children: _containers.RepeatedScalarFieldContainer[str]
    state: Segment.State
    sealed_at: Position
    change: str
    adopted: bool
    erased: bool
    def __init__(self, id: _Optional[str] = ..., log_name: _Optional[str] = ..., hash_start: _Optional[int] = ..., hash_end: _Optional[int] = ..., parents: _Optional[_Iterable[str]] = ..., children: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[Segment.State, str]] = ..., sealed_at: _Optional[_Union[Position, _Mapping]] = ..., change: _Optional[str] = ..., adopted: bool = ..., erased: bool = ...) -> None: ...

class Topology(_message.Message):
    __slots__ = ("topic", "instance_id", "segments", "next_segment", "backend", "state", "created_by", "gate_store")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LIVE: _ClassVar[Topology.State]
        CREATING: _ClassVar[Topology.State]
        DELETING: _ClassVar[Topology.State]
    LIVE: Topology.State
    CREATING: Topology.State
    DELETING: Topology.State
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    GATE_STORE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    instance_id: str
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    next_segment: int
    backend: str
    state: Topology.State
    created_by: str
    gate_store: str
    def __init__(self, topic: _Optional[str] = ..., instance_id: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., next_segment: _Optional[int] = ..., backend: _Optional[str] = ..., state: _Optional[_Union[Topology.State, str]] = ..., created_by: _Optional[str] = ..., gate_store: _Optional[str] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("source", "subscription", "execution_id", "ranges", "source_epoch", "incomplete")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    source: str
    subscription: str
    execution_id: str
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    source_epoch: int
    incomplete: bool
    def __init__(self, source: _Optional[str] = ..., subscription: _Optional[str] = ..., execution_id: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., source_epoch: _Optional[int] = ..., incomplete: bool = ...) -> None: ...

class TaskWrite(_message.Message):
    __slots__ = ("partition", "txn_id", "winners", "messages", "bytes", "counters", "round_trips", "last_seen", "histories", "rows", "fingerprint", "before")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LastSeenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class HistoriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    WINNERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIPS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    HISTORIES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    txn_id: str
    winners: _containers.RepeatedCompositeFieldContainer[Winner]
    messages: int
    bytes: int
    counters: _containers.ScalarMap[str, int]
    round_trips: int
    last_seen: _containers.ScalarMap[str, int]
    histories: _containers.ScalarMap[str, str]
    rows: int
    fingerprint: int
    before: EarlierBatch
    def __init__(self, partition: _Optional[int] = ..., txn_id: _Optional[str] = ..., winners: _Optional[_Iterable[_Union[Winner, _Mapping]]] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., round_trips: _Optional[int] = ..., last_seen: _Optional[_Mapping[str, int]] = ..., histories: _Optional[_Mapping[str, str]] = ..., rows: _Optional[int] = ..., fingerprint: _Optional[int] = ..., before: _Optional[_Union[EarlierBatch, _Mapping]] = ...) -> None: ...

class StagedWrite(_message.Message):
    __slots__ = ("tasks", "txn_id", "replay", "query", "execution_id")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskWrite]
    txn_id: str
    replay: bool
    query: str
    execution_id: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskWrite, _Mapping]]] = ..., txn_id: _Optional[str] = ..., replay: bool = ..., query: _Optional[str] = ..., execution_id: _Optional[str] = ...) -> None: ...
