from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Id(_message.Message):
    __slots__ = ("ledger", "entry")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ledger: int
    entry: int
    def __init__(self, ledger: _Optional[int] = ..., entry: _Optional[int] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EntryMetadata(_message.Message):
    __slots__ = ("producer_name", "sequence_id", "publish_time_ms", "properties", "partition_key", "compression", "uncompressed_size", "messages", "event_time_ms", "encryption_keys", "key_is_base64", "marker_type", "null_value", "uuid", "chunks", "chunked_size", "chunk_id", "null_key")
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_KEY_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    UNCOMPRESSED_SIZE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_IS_BASE64_FIELD_NUMBER: _ClassVar[int]
    MARKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    NULL_VALUE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    NULL_KEY_FIELD_NUMBER: _ClassVar[int]
    producer_name: str
    sequence_id: int
    publish_time_ms: int
    properties: _containers.RepeatedCompositeFieldContainer[Pair]
    partition_key: str
    compression: int
    uncompressed_size: int
    messages: int
    event_time_ms: int
    encryption_keys: _containers.RepeatedCompositeFieldContainer[Empty]
    key_is_base64: bool
    marker_type: int
    null_value: bool
    uuid: str
    chunks: int
    chunked_size: int
    chunk_id: int
    null_key: bool
    def __init__(self, producer_name: _Optional[str] = ..., sequence_id: _Optional[int] = ..., publish_time_ms: _Optional[int] = ..., properties: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., partition_key: _Optional[str] = ..., compression: _Optional[int] = ..., uncompressed_size: _Optional[int] = ..., messages: _Optional[int] = ..., event_time_ms: _Optional[int] = ..., encryption_keys: _Optional[_Iterable[_Union[Empty, _Mapping]]] = ..., key_is_base64: bool = ..., marker_type: _Optional[int] = ..., null_value: bool = ..., uuid: _Optional[str] = ..., chunks: _Optional[int] = ..., chunked_size: _Optional[int] = ..., chunk_id: _Optional[int] = ..., null_key: bool = ...) -> None: ...

class RowMetadata(_message.Message):
    __slots__ = ("properties", "partition_key", "payload_size", "compacted_out", "event_time_ms", "key_is_base64", "null_value", "null_key")
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_OUT_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_IS_BASE64_FIELD_NUMBER: _ClassVar[int]
    NULL_VALUE_FIELD_NUMBER: _ClassVar[int]
    NULL_KEY_FIELD_NUMBER: _ClassVar[int]
    properties: _containers.RepeatedCompositeFieldContainer[Pair]
    partition_key: str
    payload_size: int
    compacted_out: bool
    event_time_ms: int
    key_is_base64: bool
    null_value: bool
    null_key: bool
    def __init__(self, properties: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., partition_key: _Optional[str] = ..., payload_size: _Optional[int] = ..., compacted_out: bool = ..., event_time_ms: _Optional[int] = ..., key_is_base64: bool = ..., null_value: bool = ..., null_key: bool = ...) -> None: ...

class FeatureFlags(_message.Message):
    __slots__ = ("auth_refresh", "broker_entry_metadata", "partial_producer", "partitions_without_creating")
    AUTH_REFRESH_FIELD_NUMBER: _ClassVar[int]
    BROKER_ENTRY_METADATA_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_WITHOUT_CREATING_FIELD_NUMBER: _ClassVar[int]
    auth_refresh: bool
    broker_entry_metadata: bool
    partial_producer: bool
    partitions_without_creating: bool
    def __init__(self, auth_refresh: bool = ..., broker_entry_metadata: bool = ..., partial_producer: bool = ..., partitions_without_creating: bool = ...) -> None: ...

class Connect(_message.Message):
    __slots__ = ("client_version", "auth_data", "protocol_version", "auth_method_name", "proxy_to_broker_url", "feature_flags")
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTH_DATA_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTH_METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    PROXY_TO_BROKER_URL_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    client_version: str
    auth_data: bytes
    protocol_version: int
    auth_method_name: str
    proxy_to_broker_url: str
    feature_flags: FeatureFlags
    def __init__(self, client_version: _Optional[str] = ..., auth_data: _Optional[bytes] = ..., protocol_version: _Optional[int] = ..., auth_method_name: _Optional[str] = ..., proxy_to_broker_url: _Optional[str] = ..., feature_flags: _Optional[_Union[FeatureFlags, _Mapping]] = ...) -> None: ...

class Connected(_message.Message):
    __slots__ = ("server_version", "protocol_version", "max_message_bytes", "feature_flags")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    protocol_version: int
    max_message_bytes: int
    feature_flags: FeatureFlags
    def __init__(self, server_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., feature_flags: _Optional[_Union[FeatureFlags, _Mapping]] = ...) -> None: ...

class AuthData(_message.Message):
    __slots__ = ("auth_method_name", "auth_data")
    AUTH_METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    AUTH_DATA_FIELD_NUMBER: _ClassVar[int]
    auth_method_name: str
    auth_data: bytes
    def __init__(self, auth_method_name: _Optional[str] = ..., auth_data: _Optional[bytes] = ...) -> None: ...

class AuthChallenge(_message.Message):
    __slots__ = ("server_version", "challenge", "protocol_version")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    challenge: AuthData
    protocol_version: int
    def __init__(self, server_version: _Optional[str] = ..., challenge: _Optional[_Union[AuthData, _Mapping]] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class AuthResponse(_message.Message):
    __slots__ = ("client_version", "response", "protocol_version")
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    client_version: str
    response: AuthData
    protocol_version: int
    def __init__(self, client_version: _Optional[str] = ..., response: _Optional[_Union[AuthData, _Mapping]] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("topic", "subscription", "type", "consumer_id", "request_id", "consumer_name", "durable", "start", "read_compacted", "initial_position", "create_topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_NAME_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    READ_COMPACTED_FIELD_NUMBER: _ClassVar[int]
    INITIAL_POSITION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    type: int
    consumer_id: int
    request_id: int
    consumer_name: str
    durable: bool
    start: Id
    read_compacted: bool
    initial_position: int
    create_topic: bool
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., type: _Optional[int] = ..., consumer_id: _Optional[int] = ..., request_id: _Optional[int] = ..., consumer_name: _Optional[str] = ..., durable: bool = ..., start: _Optional[_Union[Id, _Mapping]] = ..., read_compacted: bool = ..., initial_position: _Optional[int] = ..., create_topic: bool = ...) -> None: ...

class PartitionsRequest(_message.Message):
    __slots__ = ("topic", "request_id", "create_topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    request_id: int
    create_topic: bool
    def __init__(self, topic: _Optional[str] = ..., request_id: _Optional[int] = ..., create_topic: bool = ...) -> None: ...

class PartitionsResponse(_message.Message):
    __slots__ = ("partitions", "request_id", "outcome", "error", "message")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    request_id: int
    outcome: int
    error: int
    message: str
    def __init__(self, partitions: _Optional[int] = ..., request_id: _Optional[int] = ..., outcome: _Optional[int] = ..., error: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Lookup(_message.Message):
    __slots__ = ("topic", "request_id", "authoritative", "listener_name")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHORITATIVE_FIELD_NUMBER: _ClassVar[int]
    LISTENER_NAME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    request_id: int
    authoritative: bool
    listener_name: str
    def __init__(self, topic: _Optional[str] = ..., request_id: _Optional[int] = ..., authoritative: bool = ..., listener_name: _Optional[str] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("url", "url_tls", "outcome", "request_id", "authoritative", "error", "message", "through_proxy")
    URL_FIELD_NUMBER: _ClassVar[int]
    URL_TLS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHORITATIVE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    THROUGH_PROXY_FIELD_NUMBER: _ClassVar[int]
    url: str
    url_tls: str
    outcome: int
    request_id: int
    authoritative: bool
    error: int
    message: str
    through_proxy: bool
    def __init__(self, url: _Optional[str] = ..., url_tls: _Optional[str] = ..., outcome: _Optional[int] = ..., request_id: _Optional[int] = ..., authoritative: bool = ..., error: _Optional[int] = ..., message: _Optional[str] = ..., through_proxy: bool = ...) -> None: ...

class CreateProducer(_message.Message):
    __slots__ = ("topic", "producer_id", "request_id", "producer_name", "epoch", "name_is_given")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_IS_GIVEN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer_id: int
    request_id: int
    producer_name: str
    epoch: int
    name_is_given: bool
    def __init__(self, topic: _Optional[str] = ..., producer_id: _Optional[int] = ..., request_id: _Optional[int] = ..., producer_name: _Optional[str] = ..., epoch: _Optional[int] = ..., name_is_given: bool = ...) -> None: ...

class ProducerReady(_message.Message):
    __slots__ = ("request_id", "producer_name", "last_sequence_id", "ready")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    producer_name: str
    last_sequence_id: int
    ready: bool
    def __init__(self, request_id: _Optional[int] = ..., producer_name: _Optional[str] = ..., last_sequence_id: _Optional[int] = ..., ready: bool = ...) -> None: ...

class Send(_message.Message):
    __slots__ = ("producer_id", "sequence_id", "messages")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    sequence_id: int
    messages: int
    def __init__(self, producer_id: _Optional[int] = ..., sequence_id: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class SendReceipt(_message.Message):
    __slots__ = ("producer_id", "sequence_id", "id")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    sequence_id: int
    id: Id
    def __init__(self, producer_id: _Optional[int] = ..., sequence_id: _Optional[int] = ..., id: _Optional[_Union[Id, _Mapping]] = ...) -> None: ...

class SendError(_message.Message):
    __slots__ = ("producer_id", "sequence_id", "error", "message")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    sequence_id: int
    error: int
    message: str
    def __init__(self, producer_id: _Optional[int] = ..., sequence_id: _Optional[int] = ..., error: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("consumer_id", "id")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    id: Id
    def __init__(self, consumer_id: _Optional[int] = ..., id: _Optional[_Union[Id, _Mapping]] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("consumer_id", "permits")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    PERMITS_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    permits: int
    def __init__(self, consumer_id: _Optional[int] = ..., permits: _Optional[int] = ...) -> None: ...

class CloseProducer(_message.Message):
    __slots__ = ("producer_id", "request_id")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    request_id: int
    def __init__(self, producer_id: _Optional[int] = ..., request_id: _Optional[int] = ...) -> None: ...

class CloseConsumer(_message.Message):
    __slots__ = ("consumer_id", "request_id")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    request_id: int
    def __init__(self, consumer_id: _Optional[int] = ..., request_id: _Optional[int] = ...) -> None: ...

class Success(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("request_id", "error", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    error: int
    message: str
    def __init__(self, request_id: _Optional[int] = ..., error: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class LastIdRequest(_message.Message):
    __slots__ = ("consumer_id", "request_id")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    request_id: int
    def __init__(self, consumer_id: _Optional[int] = ..., request_id: _Optional[int] = ...) -> None: ...

class LastIdResponse(_message.Message):
    __slots__ = ("last", "request_id")
    LAST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    last: Id
    request_id: int
    def __init__(self, last: _Optional[_Union[Id, _Mapping]] = ..., request_id: _Optional[int] = ...) -> None: ...

class TopicMigrated(_message.Message):
    __slots__ = ("resource_id", "resource_type")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    resource_id: int
    resource_type: int
    def __init__(self, resource_id: _Optional[int] = ..., resource_type: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("type", "connect", "connected", "subscribe", "producer", "send", "send_receipt", "send_error", "delivery", "flow", "success", "error", "close_producer", "close_consumer", "producer_ready", "ping", "pong", "partitions", "partitions_response", "lookup", "lookup_response", "get_last_id", "last_id", "auth_challenge", "auth_response", "topic_migrated")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Command.Type]
        CONNECT: _ClassVar[Command.Type]
        CONNECTED: _ClassVar[Command.Type]
        SUBSCRIBE: _ClassVar[Command.Type]
        PRODUCER: _ClassVar[Command.Type]
        SEND: _ClassVar[Command.Type]
        SEND_RECEIPT: _ClassVar[Command.Type]
        SEND_ERROR: _ClassVar[Command.Type]
        MESSAGE: _ClassVar[Command.Type]
        FLOW: _ClassVar[Command.Type]
        SUCCESS: _ClassVar[Command.Type]
        ERROR: _ClassVar[Command.Type]
        CLOSE_PRODUCER: _ClassVar[Command.Type]
        CLOSE_CONSUMER: _ClassVar[Command.Type]
        PRODUCER_SUCCESS: _ClassVar[Command.Type]
        PING: _ClassVar[Command.Type]
        PONG: _ClassVar[Command.Type]
        PARTITIONS: _ClassVar[Command.Type]
        PARTITIONS_RESPONSE: _ClassVar[Command.Type]
        LOOKUP: _ClassVar[Command.Type]
        LOOKUP_RESPONSE: _ClassVar[Command.Type]
        GET_LAST_ID: _ClassVar[Command.Type]
        LAST_ID: _ClassVar[Command.Type]
        AUTH_CHALLENGE: _ClassVar[Command.Type]
        AUTH_RESPONSE: _ClassVar[Command.Type]
        TOPIC_MIGRATED: _ClassVar[Command.Type]
    UNKNOWN: Command.Type
    CONNECT: Command.Type
    CONNECTED: Command.Type
    SUBSCRIBE: Command.Type
    PRODUCER: Command.Type
    SEND: Command.Type
    SEND_RECEIPT: Command.Type
    SEND_ERROR: Command.Type
    MESSAGE: Command.Type
    FLOW: Command.Type
    SUCCESS: Command.Type
    ERROR: Command.Type
    CLOSE_PRODUCER: Command.Type
    CLOSE_CONSUMER: Command.Type
    PRODUCER_SUCCESS: Command.Type
    PING: Command.Type
    PONG: Command.Type
    PARTITIONS: Command.Type
    PARTITIONS_RESPONSE: Command.Type
    LOOKUP: Command.Type
    LOOKUP_RESPONSE: Command.Type
    GET_LAST_ID: Command.Type
    LAST_ID: Command.Type
    AUTH_CHALLENGE: Command.Type
    AUTH_RESPONSE: Command.Type
    TOPIC_MIGRATED: Command.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    SEND_RECEIPT_FIELD_NUMBER: _ClassVar[int]
    SEND_ERROR_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CLOSE_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_CONSUMER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_READY_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    GET_LAST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    AUTH_CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    AUTH_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_MIGRATED_FIELD_NUMBER: _ClassVar[int]
    type: Command.Type
    connect: Connect
    connected: Connected
    subscribe: Subscribe
    producer: CreateProducer
    send: Send
    send_receipt: SendReceipt
    send_error: SendError
    delivery: Delivery
    flow: Flow
    success: Success
    error: Failure
    close_producer: CloseProducer
    close_consumer: CloseConsumer
    producer_ready: ProducerReady
    ping: Empty
    pong: Empty
    partitions: PartitionsRequest
    partitions_response: PartitionsResponse
    lookup: Lookup
    lookup_response: LookupResponse
    get_last_id: LastIdRequest
    last_id: LastIdResponse
    auth_challenge: AuthChallenge
    auth_response: AuthResponse
    topic_migrated: TopicMigrated
    def __init__(self, type: _Optional[_Union[Command.Type, str]] = ..., connect: _Optional[_Union[Connect, _Mapping]] = ..., connected: _Optional[_Union[Connected, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., producer: _Optional[_Union[CreateProducer, _Mapping]] = ..., send: _Optional[_Union[Send, _Mapping]] = ..., send_receipt: _Optional[_Union[SendReceipt, _Mapping]] = ..., send_error: _Optional[_Union[SendError, _Mapping]] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ..., flow: _Optional[_Union[Flow, _Mapping]] = ..., success: _Optional[_Union[Success, _Mapping]] = ..., error: _Optional[_Union[Failure, _Mapping]] = ..., close_producer: _Optional[_Union[CloseProducer, _Mapping]] = ..., close_consumer: _Optional[_Union[CloseConsumer, _Mapping]] = ..., producer_ready: _Optional[_Union[ProducerReady, _Mapping]] = ..., ping: _Optional[_Union[Empty, _Mapping]] = ..., pong: _Optional[_Union[Empty, _Mapping]] = ..., partitions: _Optional[_Union[PartitionsRequest, _Mapping]] = ..., partitions_response: _Optional[_Union[PartitionsResponse, _Mapping]] = ..., lookup: _Optional[_Union[Lookup, _Mapping]] = ..., lookup_response: _Optional[_Union[LookupResponse, _Mapping]] = ..., get_last_id: _Optional[_Union[LastIdRequest, _Mapping]] = ..., last_id: _Optional[_Union[LastIdResponse, _Mapping]] = ..., auth_challenge: _Optional[_Union[AuthChallenge, _Mapping]] = ..., auth_response: _Optional[_Union[AuthResponse, _Mapping]] = ..., topic_migrated: _Optional[_Union[TopicMigrated, _Mapping]] = ...) -> None: ...
