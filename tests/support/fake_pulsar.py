"""A broker of a few topics in this process, which misbehaves where a test tells it to."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAuthChallenge,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnected,
    CommandError,
    CommandGetLastMessageIdResponse,
    CommandLookupTopicResponse,
    CommandMessage,
    CommandPartitionedTopicMetadataResponse,
    CommandPong,
    CommandProducerSuccess,
    CommandReachedEndOfTopic,
    CommandScalableTopicUpdate,
    CommandSendError,
    CommandSendReceipt,
    CommandSuccess,
    CommandTcClientConnectResponse,
    CommandTxnResponse,
    CommandWatchTcAssignmentsUpdate,
    FeatureFlags,
    ScalableTopicDAG,
    SegmentInfoProto,
    TcAssignment,
    TcAssignmentsSnapshot,
)
from pulsar_txn_spark.backends.pulsar.wire.connection import positive_id, wire_id
from pulsar_txn_spark.backends.pulsar.wire.frames import (
    Frame,
    FrameParser,
    decode_entry,
    encode_command,
)

LEDGER = 7
NOT_FOUND = 11
TERMINATED = 15
INVALID_STATUS = 21
TXN_NOT_FOUND = 24
Act = str | tuple[int, str] | None
"""What is done with an entry: None = stored and acknowledged; "cut" = lost with the connection;
"store-cut" = stored, then the connection is cut; "close" and "store-close" = the same, but only
the producer is closed; "silent" = nothing; "duplicate" = acknowledged as one; (error, message)."""


Txn = tuple[int, int]


@dataclass
class Coordinator:
    """Transactions as Pulsar's own coordinators have them: what has ended is forgotten."""

    open: dict[Txn, set[str]] = field(default_factory=dict)  # the topics that take part
    committing: set[Txn] = field(default_factory=set)
    committed: set[Txn] = field(default_factory=set)
    known: set[Txn | None] = field(default_factory=set)
    begun: int = 0
    timeouts_ms: list[int] = field(default_factory=list)
    on_end: Callable[[Txn, bool], str | tuple[int, str] | None] = lambda _txn, _commit: None
    """Before END_TXN: None = as usual; "committing" = decided, and not through yet; "lost" = done
    without a reply; (error, message)."""

    def finish(self, txn: Txn) -> None:
        """Let a commit be through."""
        self.committing.discard(txn)
        self.committed.add(txn)
        self.open.pop(txn, None)

    def hides(self, topic: str, txn: Txn | None) -> bool:
        """Tell whether readers of a topic stop before an entry of a transaction."""
        return txn is not None and txn in self.open and topic in self.open[txn]

    def shows(self, txn: Txn | None) -> bool:
        """Tell whether an entry that hides nothing is one that readers get."""
        # One that no coordinator has begun is gated elsewhere.
        return txn not in self.known or txn in self.committed


@dataclass
class Topic:
    entries: list[tuple[bytes, int]] = field(default_factory=list)  # body, messages
    txns: dict[int, Txn] = field(default_factory=dict)  # entry -> transaction
    stored: dict[str, int] = field(default_factory=dict)  # name -> last sequence id
    terminated: bool = False
    cursors: dict[str, int] = field(default_factory=dict)  # durable subscription -> acknowledged


@dataclass
class FakePulsar:
    """Listens on a free port of the loopback until it is closed."""

    tls: ssl.SSLContext | None = None
    deduplicates: bool = True
    ledger: int = LEDGER  # what receipts name
    max_message_bytes: int = 1 << 20
    on_send: Callable[[int, str], Act] = lambda _sequence, _name: None
    on_lookup: Callable[[BaseCommand], CommandLookupTopicResponse | None] = lambda _command: None
    on_close: Callable[[Peer, CommandCloseProducer], bool] = lambda _peer, _closing: (
        True
    )  # answer now?
    partitions: dict[str, int] = field(default_factory=dict)  # of the topics that there are
    asks_without_creating: bool = True
    answers_pings: bool = True
    refuses: dict[int, list[tuple[int, str]]] = field(default_factory=dict)  # by command type
    ignores: dict[int, int] = field(default_factory=dict)  # so many requests, by command type
    topics: dict[str, Topic] = field(default_factory=dict)
    heard: list[BaseCommand] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    cut_after_deliveries: int = -1
    delivers_after_s: float = 0.0  # as one that has to read from a slow disk
    coordinator: Coordinator = field(default_factory=Coordinator)
    scalable: dict[str, list[SegmentInfoProto]] | None = None  # None: a broker before Pulsar 5
    last_ids_move: bool = True  # False: GET_LAST_MESSAGE_ID as 5.0.0-M1 answers it
    is_loading: bool = False  # as 5.0.0-M1: all rows are shown, up to a GET_LAST_MESSAGE_ID

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        scheme = "pulsar+ssl" if self.tls else "pulsar"
        host = "localhost" if self.tls else "127.0.0.1"
        self.url = f"{scheme}://{host}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer = Peer(self, self._listening.accept()[0])
                self.peers.append(peer)
                threading.Thread(target=peer.run, daemon=True).start()

    def close(self) -> None:
        # Only this ends an accept() that is under way.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for peer in self.peers:
            peer.cut()

    def topic(self, name: str) -> Topic:
        return self.topics.setdefault(name, Topic())

    def note(self, command: BaseCommand) -> None:
        with self.changed:
            self.heard.append(command)
            self.changed.notify_all()

    def count(self, kind: int) -> int:
        return sum(command.type == kind for command in self.heard)

    def await_heard(self, kind: int, times: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.count(kind) >= times, 5), kind


class Peer:
    """One connection that came in."""

    def __init__(self, broker: FakePulsar, opened: socket.socket) -> None:
        self.broker = broker
        self._socket = opened
        self._lock = threading.Lock()
        self._producers: dict[int, tuple[str, str]] = {}  # topic, name
        self._consumers: dict[int, list[int | str]] = {}  # topic, next entry, permits
        self._durable: dict[int, str] = {}  # consumer -> subscription
        self.open = True

    def cut(self) -> None:
        self.open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def say(self, command: BaseCommand, body: bytes = b"") -> None:
        data = encode_command(command)
        if body:
            size = int.from_bytes(data[:4]) + len(body)
            data = size.to_bytes(4) + data[4:] + body
        self.say_bytes(data)

    def run(self) -> None:
        with contextlib.suppress(OSError):
            if self.broker.tls is not None:
                self._socket = self.broker.tls.wrap_socket(self._socket, server_side=True)
            for frame in self._frames():
                if not self.open:
                    break
                self.broker.note(frame.command)
                self._answer(frame)
        self.cut()

    def _frames(self) -> Iterator[Frame]:
        parser = FrameParser(8 << 20)
        while self.open and (data := self._socket.recv(1 << 20)):
            yield from parser.feed(data)

    def say_bytes(self, data: bytes) -> None:
        with contextlib.suppress(OSError), self._lock:
            self._socket.sendall(data)

    def challenge(self) -> None:
        self.say(BaseCommand(type=BaseCommand.AUTH_CHALLENGE, authChallenge=CommandAuthChallenge()))

    def _answer(self, frame: Frame) -> None:  # noqa: C901, PLR0912, PLR0915 - a branch for each command
        command, broker = frame.command, self.broker
        kind = command.type
        if broker.ignores.get(kind):
            broker.ignores[kind] -= 1
        elif broker.refuses.get(kind):
            error, message = broker.refuses[kind].pop(0)
            bodies = [getattr(command, f.name) for f, _ in command.ListFields() if f.name != "type"]
            number = getattr(bodies[0], "request_id", 0)
            failure = CommandError(request_id=number, error=error, message=message)
            self.say(BaseCommand(type=BaseCommand.ERROR, error=failure))
        elif kind == BaseCommand.CONNECT:
            connected = CommandConnected(
                server_version="fake",
                protocol_version=19,
                max_message_size=broker.max_message_bytes,
                feature_flags=FeatureFlags(
                    supports_get_partitioned_metadata_without_auto_creation=broker.asks_without_creating,
                    supports_scalable_topics=broker.scalable is not None,
                ),
            )
            self.say(BaseCommand(type=BaseCommand.CONNECTED, connected=connected))
        elif kind == BaseCommand.LOOKUP:
            answer = broker.on_lookup(command) or CommandLookupTopicResponse(
                response=1, brokerServiceUrl=broker.url, brokerServiceUrlTls=broker.url
            )
            answer.request_id = command.lookupTopic.request_id
            self.say(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=answer))
        elif kind == BaseCommand.PARTITIONED_METADATA:
            self._count_partitions(command)
        elif kind == BaseCommand.PING and broker.answers_pings:
            self.say(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
        elif kind == BaseCommand.PRODUCER:
            self._produce(command)
        elif kind == BaseCommand.SEND:
            self._store(frame)
        elif kind == BaseCommand.SUBSCRIBE:
            self._subscribe(command)
        elif kind == BaseCommand.FLOW and command.flow.consumer_id in self._consumers:
            self._consumers[command.flow.consumer_id][2] += command.flow.messagePermits  # type: ignore[operator]
            if broker.delivers_after_s:
                later = threading.Timer(
                    broker.delivers_after_s, self.deliver, (command.flow.consumer_id,)
                )
                later.daemon = True
                later.start()
            else:
                self.deliver(command.flow.consumer_id)
        elif kind == BaseCommand.ACK and command.ack.consumer_id in self._consumers:
            assert command.ack.ack_type == 1
            self._acknowledge(command.ack.consumer_id, positive_id(command.ack.message_id[0])[1])
        elif kind == BaseCommand.SCALABLE_TOPIC_LOOKUP:
            self._look_up_scalable(command)
        elif kind == BaseCommand.WATCH_TC_ASSIGNMENTS:
            here = TcAssignment(tc_id=0, broker_service_url=broker.url)
            update = CommandWatchTcAssignmentsUpdate(
                watch_id=command.watchTcAssignments.watch_id,
                snapshot=TcAssignmentsSnapshot(parallelism=1, assignments=[here]),
            )
            self.say(
                BaseCommand(
                    type=BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE, watchTcAssignmentsUpdate=update
                )
            )
        elif kind in (
            BaseCommand.TC_CLIENT_CONNECT_REQUEST,
            BaseCommand.NEW_TXN,
            BaseCommand.ADD_PARTITION_TO_TXN,
            BaseCommand.END_TXN,
        ):
            self._coordinate(command)
        elif kind == BaseCommand.GET_LAST_MESSAGE_ID:
            broker.is_loading = False
            topic, upcoming, _, acked, *_ = self._consumers[command.getLastMessageId.consumer_id]
            readable = self._readable(str(topic)) if broker.last_ids_move else 0
            txns = broker.topic(str(topic)).txns
            # What was aborted a broker acknowledges for a reader that has come past it.
            while int(acked) + 1 < int(upcoming) and not broker.coordinator.shows(
                txns.get(int(acked) + 1)
            ):
                acked = int(acked) + 1
            last = CommandGetLastMessageIdResponse(
                request_id=command.getLastMessageId.request_id,
                last_message_id=wire_id(LEDGER, readable - 1),
                consumer_mark_delete_position=wire_id(LEDGER, int(acked)),
            )
            self.say(
                BaseCommand(
                    type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=last
                )
            )
        elif kind == BaseCommand.CLOSE_PRODUCER:
            self._producers.pop(command.close_producer.producer_id, None)
            if broker.on_close(self, command.close_producer):
                self.succeed(command.close_producer.request_id)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self._consumers.pop(command.close_consumer.consumer_id, None)
            self.succeed(command.close_consumer.request_id)

    def _count_partitions(self, command: BaseCommand) -> None:
        asked = command.partitionMetadata
        assert not asked.metadata_auto_creation_enabled
        answer = CommandPartitionedTopicMetadataResponse(request_id=asked.request_id)
        if asked.topic in self.broker.partitions:
            answer.partitions = self.broker.partitions[asked.topic]
        else:
            answer.response, answer.error, answer.message = 1, NOT_FOUND, "not here"
        self.say(
            BaseCommand(
                type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer
            )
        )

    def succeed(self, request: int) -> None:
        self.say(BaseCommand(type=BaseCommand.SUCCESS, success=CommandSuccess(request_id=request)))

    def _produce(self, command: BaseCommand) -> None:
        asked = command.producer
        topic = self.broker.topic(asked.topic)
        if topic.terminated:
            failure = CommandError(
                request_id=asked.request_id, error=TERMINATED, message="terminated"
            )
            self.say(BaseCommand(type=BaseCommand.ERROR, error=failure))
            return
        self._producers[asked.producer_id] = (asked.topic, asked.producer_name)
        last = topic.stored.get(asked.producer_name, -1) if self.broker.deduplicates else -1
        ready = CommandProducerSuccess(
            request_id=asked.request_id, producer_name=asked.producer_name, last_sequence_id=last
        )
        self.say(BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=ready))

    def _store(self, frame: Frame) -> None:
        send = frame.command.send
        if send.producer_id not in self._producers:
            return
        name, producer = self._producers[send.producer_id]
        topic = self.broker.topic(name)
        act = self.broker.on_send(send.sequence_id, producer)
        if isinstance(act, tuple):
            error = CommandSendError(
                producer_id=send.producer_id,
                sequence_id=send.sequence_id,
                error=act[0],
                message=act[1],
            )
            self.say(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=error))
            return
        at = wire_id(-1, -1)
        if act in (None, "store-cut", "store-close"):
            decode_entry(frame.body)  # its checksum is right
            if send.HasField("txnid_most_bits"):
                txn = (send.txnid_most_bits, send.txnid_least_bits)
                topic.txns[len(topic.entries)] = txn
            topic.entries.append((frame.body, send.num_messages))
            topic.stored[producer] = send.sequence_id
            at = wire_id(self.broker.ledger, len(topic.entries) - 1)
        if act in ("cut", "store-cut"):
            self.cut()
        elif act in ("close", "store-close"):
            self.close_producer(send.producer_id)
        elif act != "silent":
            receipt = CommandSendReceipt(
                producer_id=send.producer_id, sequence_id=send.sequence_id, message_id=at
            )
            self.say(BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=receipt))

    def close_producer(self, number: int) -> None:
        self._producers.pop(number, None)
        closing = CommandCloseProducer(producer_id=number, request_id=0)
        self.say(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=closing))

    def close_consumers(self) -> None:
        for number in list(self._consumers):
            del self._consumers[number]
            closing = CommandCloseConsumer(consumer_id=number, request_id=0)
            self.say(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=closing))

    def _subscribe(self, command: BaseCommand) -> None:
        asked = command.subscribe
        ledger, entry = positive_id(asked.start_message_id)
        # As a real broker: one step back, since a batch may have been read in part. Where that is
        # still behind the last entry, the initial position decides: the end or the first entry.
        count = len(self.broker.topic(asked.topic).entries)
        first = 0 if ledger < LEDGER else max(entry, 0)
        if ledger > LEDGER or first > count:
            first = 0 if asked.initialPosition else count
        if asked.durable:
            self._durable[asked.consumer_id] = asked.subscription
            first = self.broker.topic(asked.topic).cursors.setdefault(asked.subscription, -1) + 1
        # Topic, next entry, permits, what was acknowledged, and what was delivered last.
        self._consumers[asked.consumer_id] = [asked.topic, first, 0, first - 1, first - 1]
        self.succeed(asked.request_id)

    def _acknowledge(self, number: int, entry: int) -> None:
        consumer = self._consumers[number]
        consumer[3] = entry
        if number in self._durable:
            self.broker.topic(str(consumer[0])).cursors[self._durable[number]] = entry
        self._tell_end(number, consumer)

    def _look_up_scalable(self, command: BaseCommand) -> None:
        asked = command.scalableTopicLookup
        update = CommandScalableTopicUpdate(session_id=asked.session_id)
        segments = (self.broker.scalable or {}).get(asked.topic)
        if segments is None:
            update.error, update.message = NOT_FOUND, f"Scalable topic not found: {asked.topic}"
        else:
            update.dag.CopyFrom(ScalableTopicDAG(epoch=0, segments=segments))
        self.say(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE, scalableTopicUpdate=update))

    def _readable(self, name: str) -> int:
        """Return before which entry readers of a topic stop."""
        topic, coordinator = self.broker.topic(name), self.broker.coordinator
        if self.broker.is_loading:
            return len(topic.entries)
        hidden = [at for at, txn in topic.txns.items() if coordinator.hides(name, txn)]
        return min(hidden, default=len(topic.entries))

    def _coordinate(self, command: BaseCommand) -> None:
        coordinator, kind = self.broker.coordinator, command.type
        if kind == BaseCommand.TC_CLIENT_CONNECT_REQUEST:
            connected = CommandTcClientConnectResponse(
                request_id=command.tcClientConnectRequest.request_id
            )
            self.say(
                BaseCommand(
                    type=BaseCommand.TC_CLIENT_CONNECT_RESPONSE, tcClientConnectResponse=connected
                )
            )
        elif kind == BaseCommand.NEW_TXN:
            coordinator.begun += 1
            txn = (command.newTxn.tc_id, coordinator.begun)
            coordinator.open[txn] = set()
            coordinator.known.add(txn)
            coordinator.timeouts_ms.append(command.newTxn.txn_ttl_seconds)
            answer = CommandTxnResponse(
                request_id=command.newTxn.request_id,
                txnid_most_bits=txn[0],
                txnid_least_bits=txn[1],
            )
            self.say(BaseCommand(type=BaseCommand.NEW_TXN_RESPONSE, newTxnResponse=answer))
        elif kind == BaseCommand.ADD_PARTITION_TO_TXN:
            add = command.addPartitionToTxn
            txn = (add.txnid_most_bits, add.txnid_least_bits)
            answer = CommandTxnResponse(request_id=add.request_id)
            if txn in coordinator.committing:
                answer.error, answer.message = INVALID_STATUS, "it is committing"
            elif txn in coordinator.open:
                coordinator.open[txn].update(add.partitions)
            else:
                answer.error, answer.message = TXN_NOT_FOUND, f"{txn} not found"
            self.say(
                BaseCommand(
                    type=BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE, addPartitionToTxnResponse=answer
                )
            )
        else:
            self._end_txn(command)

    def _end_txn(self, command: BaseCommand) -> None:
        coordinator, end = self.broker.coordinator, command.endTxn
        txn, commit = (end.txnid_most_bits, end.txnid_least_bits), end.txn_action == 0
        answer = CommandTxnResponse(request_id=end.request_id)
        act = coordinator.on_end(txn, commit)
        if isinstance(act, tuple):
            answer.error, answer.message = act
        elif txn not in coordinator.open:
            answer.error, answer.message = TXN_NOT_FOUND, f"{txn} not found"
        elif txn in coordinator.committing and not commit:
            answer.error, answer.message = INVALID_STATUS, "expected OPEN, found COMMITTING"
        elif act == "committing":
            coordinator.committing.add(txn)
            return  # answered when it is through
        elif commit:
            coordinator.finish(txn)
        else:
            del coordinator.open[txn]
        if act != "lost":
            self.say(BaseCommand(type=BaseCommand.END_TXN_RESPONSE, endTxnResponse=answer))
        for peer in self.broker.peers:
            for number in list(peer._consumers):
                peer.deliver(number)

    def deliver(self, number: int) -> None:
        consumer = self._consumers.get(number)
        if consumer is None:
            return  # it has left
        name = str(consumer[0])
        topic, coordinator = self.broker.topic(name), self.broker.coordinator
        entries = topic.entries
        while int(consumer[2]) > 0 and int(consumer[1]) < self._readable(name) and self.open:
            at = int(consumer[1])
            if not (self.broker.is_loading or coordinator.shows(topic.txns.get(at))):
                consumer[1] = at + 1
                continue
            if self.broker.cut_after_deliveries == 0:
                self.broker.cut_after_deliveries = -1
                self.cut()
                return
            self.broker.cut_after_deliveries -= 1
            body, messages = entries[at]
            consumer[1:3] = [at + 1, int(consumer[2]) - messages]
            consumer[4] = at
            delivery = CommandMessage(consumer_id=number, message_id=wire_id(LEDGER, at))
            self.say(BaseCommand(type=BaseCommand.MESSAGE, message=delivery), body)
        self._tell_end(number, consumer)

    def _tell_end(self, number: int, consumer: list[int | str]) -> None:
        topic = self.broker.topic(str(consumer[0]))
        all_acked = int(consumer[3]) >= int(consumer[4])
        if topic.terminated and int(consumer[1]) >= len(topic.entries) and all_acked:
            ended = CommandReachedEndOfTopic(consumer_id=number)
            self.say(BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC, reachedEndOfTopic=ended))
