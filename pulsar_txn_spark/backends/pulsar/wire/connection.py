"""One connection to a broker: a thread of its own moves bytes, everybody else waits for results.

Only that thread touches the socket once it is open, so that TLS is never used by two at a time.
Handlers are called on it: they note what came and wake somebody up, and never block.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopics
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandMessage,
    CommandPing,
    CommandPong,
    CommandSendError,
    CommandSendReceipt,
    FeatureFlags,
    MessageIdData,
)
from pulsar_txn_spark.backends.pulsar.wire.frames import (
    FRAME_PADDING_BYTES,
    Frame,
    FrameError,
    FrameParser,
    encode_command,
)
from pulsar_txn_spark.backends.pulsar.wire.settings import Address, ConnectionSettings
from pulsar_txn_spark.errors import OptionError

PROTOCOL_VERSION = 19  # with entry metadata by the broker; what we use is older
CLIENT_VERSION = "pulsar-txn-spark"
DEFAULT_MESSAGE_BYTES = 5 * 1024 * 1024  # of a broker that does not say

_LOG = logging.getLogger(__name__)
_RECEIVE_BYTES = 1024 * 1024
_PIECES = 64  # for one call of the system
_CLOSING_SECONDS = 1.0  # for what is left to be sent
_LEAST_DIAL_SECONDS = 0.1  # a timeout of 0 would mean: do not wait at all
_NONE = 2**64 - 1  # -1 as Pulsar sends it

RESULTS = {
    1: "BrokerMetadataError",
    2: "BrokerPersistenceError",
    3: "AuthenticationError",
    4: "AuthorizationError",
    5: "ConsumerBusy",
    6: "ServiceUnitNotReady",
    7: "ProducerBlockedQuotaExceededError",
    8: "ProducerBlockedQuotaExceededException",
    9: "ChecksumError",
    10: "UnsupportedVersionError",
    11: "TopicNotFound",
    14: "TooManyLookupRequestException",
    15: "TopicTerminated",
    16: "ProducerBusy",
    17: "InvalidTopicName",
    20: "TransactionCoordinatorNotFound",
    21: "InvalidTxnStatus",
    22: "NotAllowedError",
    24: "TransactionNotFound",
    25: "ProducerFenced",
}
"""Pulsar's ``ServerError`` -> the name that ``pulsar_errors.translate`` knows."""


class RefusedError(Exception):
    """A request or a connection failed; becomes an error of the package where a segment is known.

    Parameters
    ----------
    result : str
        As in ``pulsar_errors``.
    detail : str
        What the broker or the system said.
    """

    def __init__(self, result: str, detail: str = "") -> None:
        super().__init__(result, detail)
        self.result = result
        self.detail = detail

    @classmethod
    def of(cls, error: int, message: str) -> RefusedError:
        """Make one of what a broker answered."""
        return cls(RESULTS.get(error, "UnknownError"), message)


class ProducerHandler(Protocol):
    """What a connection tells a producer."""

    def on_receipt(self, receipt: CommandSendReceipt) -> None:
        """Take a receipt."""
        ...

    def on_error(self, error: CommandSendError) -> None:
        """Take the refusal of an entry."""
        ...

    def on_lost(self, why: RefusedError) -> None:
        """Know that nothing more will come."""
        ...


class ConsumerHandler(Protocol):
    """What a connection tells a consumer."""

    def on_message(self, delivery: CommandMessage, body: bytes) -> None:
        """Take an entry."""
        ...

    def on_end(self) -> None:
        """Know that the topic is sealed, and that no further entry of it will come."""
        ...

    def on_lost(self, why: RefusedError) -> None:
        """Know that nothing more will come."""
        ...


class _Waiter:
    """Waits for the answer to one request."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._answer: BaseCommand | None = None
        self._why = RefusedError("Timeout")

    def answer(self, command: BaseCommand) -> None:
        self._answer = command
        self._done.set()

    def fail(self, why: RefusedError) -> None:
        self._why = why
        self._done.set()

    def wait(self, timeout_s: float) -> BaseCommand:
        self._done.wait(timeout_s)
        if self._answer is None:
            raise RefusedError(self._why.result, self._why.detail)
        return self._answer


def positive_id(message_id: MessageIdData) -> tuple[int, int]:
    """Return ledger and entry, -1 where Pulsar means that."""
    return (
        -1 if message_id.ledgerId == _NONE else message_id.ledgerId,
        -1 if message_id.entryId == _NONE else message_id.entryId,
    )


def wire_id(ledger: int, entry: int) -> MessageIdData:
    """Return a position as Pulsar sends it."""
    return MessageIdData(ledgerId=ledger & _NONE, entryId=entry & _NONE)


class Connection:
    """Connects and authenticates; see the module.

    Parameters
    ----------
    settings : ConnectionSettings
        How.
    address : Address
        Where to.
    behind_proxy : str, optional
        ``host:port`` of the broker behind a proxy at `address`.

    Raises
    ------
    RefusedError
        If nobody answers, or refuses.
    OptionError
        If a certificate or a token cannot be read.
    """

    def __init__(
        self, settings: ConnectionSettings, address: Address, behind_proxy: str | None = None
    ) -> None:
        self._settings = settings
        self.address = address
        self.max_message_bytes = DEFAULT_MESSAGE_BYTES
        self.asks_without_creating = False
        """Whether the broker tells a topic's partitions without creating the topic."""
        self.knows_scalable_topics = False
        """Whether the broker has scalable topics of its own (Pulsar 5)."""
        self._lock = threading.Lock()
        self.known_topics = KnownTopics()
        """What was learned of the broker's topics since this connection was opened."""
        self._outgoing: collections.deque[memoryview] = collections.deque()
        self._waiters: dict[int, _Waiter] = {}
        self._producers: dict[int, ProducerHandler] = {}
        self._consumers: dict[int, ConsumerHandler] = {}
        self._requests = itertools.count(1)
        self._failure: RefusedError | None = None
        self._closing_at: float | None = None
        self._heard = time.monotonic()
        self._pinged = False
        self._parser = FrameParser(DEFAULT_MESSAGE_BYTES + FRAME_PADDING_BYTES)
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._socket = self._open(behind_proxy)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._awake = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(
            target=self._run, name=f"pulsar-wire-{address}", daemon=True
        )
        self._thread.start()

    # --- for everybody ------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Return whether the connection is open, as far as is known."""
        return self._failure is None and self._closing_at is None

    def post(self, pieces: Iterable[bytes]) -> None:
        """Queue a frame to be sent.

        Raises
        ------
        RefusedError
            If the connection is lost.
        """
        with self._lock:
            if self._failure is not None:
                raise RefusedError(self._failure.result, self._failure.detail)
            self._outgoing.extend(memoryview(piece) for piece in pieces if piece)
            self._wake()

    def request(self, make: Callable[[int], BaseCommand], timeout_s: float) -> BaseCommand:
        """Send the command that `make` makes of a request id, and return the answer.

        Raises
        ------
        RefusedError
            If the broker refuses, does not answer in time, or the connection is lost.
        """
        number = next(self._requests)
        waiter = self._waiters[number] = _Waiter()
        try:
            self.post([encode_command(make(number))])
            return waiter.wait(timeout_s)
        finally:
            self._waiters.pop(number, None)

    def tell(self, make: Callable[[int], BaseCommand]) -> None:
        """Send a command whose answer nobody waits for. A lost connection is no error."""
        with contextlib.suppress(RefusedError):
            self.post([encode_command(make(next(self._requests)))])

    def add_producer(self, number: int, handler: ProducerHandler) -> None:
        """Let a producer know what concerns it, until it is lost or removed."""
        self._producers[number] = handler

    def add_consumer(self, number: int, handler: ConsumerHandler) -> None:
        """Let a consumer know what concerns it, until it is lost or removed."""
        self._consumers[number] = handler

    def remove(self, number: int) -> None:
        """Tell a producer or consumer nothing any more."""
        self._producers.pop(number, None)
        self._consumers.pop(number, None)

    def close(self) -> None:
        """Send what is queued, within a short time, and close."""
        with self._lock:
            if self._closing_at is None:
                self._closing_at = time.monotonic() + _CLOSING_SECONDS
            if self._failure is None:
                self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * _CLOSING_SECONDS)

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            with contextlib.suppress(OSError):  # it is awake, or gone
                self._waker.send(b"\0")

    # --- opening ------------------------------------------------------------------------------

    def _open(self, behind_proxy: str | None) -> socket.socket:
        settings = self._settings
        context = settings.tls_settings.context() if self.address.tls else None
        opened: socket.socket | None = None
        try:
            opened = self._dial()
            opened.settimeout(settings.connect_s)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                opened = context.wrap_socket(opened, server_hostname=self.address.host)
            self._greet(opened, behind_proxy)
            opened.setblocking(False)
        # TLS and timeouts are OSErrors; a host's name that is none (IDNA) is a UnicodeError.
        except (OSError, FrameError, UnicodeError) as failed:
            if opened is not None:
                opened.close()
            # A certificate that is not trusted now is not trusted a second later.
            lasting = isinstance(failed, ssl.SSLCertVerificationError)
            result = "CertificateError" if lasting else "ConnectError"
            raise RefusedError(result, f"{self.address}: {failed}") from None
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        return opened

    def _dial(self) -> socket.socket:
        """Connect to the first address of the host that answers; all of them share the time."""
        deadline = time.monotonic() + self._settings.connect_s
        failure = OSError("the host has no address")
        resolved = socket.getaddrinfo(*self.address[:2], type=socket.SOCK_STREAM)
        for passed, (family, kind, protocol, _, where) in enumerate(resolved):
            left = max(deadline - time.monotonic(), _LEAST_DIAL_SECONDS)
            try:
                opened = socket.socket(family, kind, protocol)
                try:
                    opened.settimeout(left / (len(resolved) - passed))
                    opened.connect(where)
                except BaseException:
                    opened.close()
                    raise
            except OSError as failed:
                failure = failed
            else:
                return opened
        raise failure

    def _greet(self, opened: socket.socket, behind_proxy: str | None) -> None:
        # Begins here: an address that did not answer takes nothing from a broker that did.
        deadline = time.monotonic() + self._settings.connect_s
        method, data = self._settings.authentication()
        connect = CommandConnect(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=method,
            feature_flags=FeatureFlags(
                # Off: what the broker adds would only be skipped.
                supports_auth_refresh=True,
                supports_broker_entry_metadata=False,
            ),
        )
        if method != "none":
            connect.auth_data = data
        if behind_proxy is not None:
            connect.proxy_to_broker_url = behind_proxy
        opened.sendall(encode_command(BaseCommand(type=BaseCommand.CONNECT, connect=connect)))
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RefusedError("Timeout", f"{self.address} did not answer CONNECT")
            opened.settimeout(left)
            size = opened.recv_into(self._buffer)
            if not size:
                raise RefusedError("ConnectError", f"{self.address} closed the connection")
            for frame in self._parser.feed(memoryview(self._buffer)[:size]):
                command = frame.command
                if command.type == BaseCommand.CONNECTED:
                    limit = command.connected.max_message_size or DEFAULT_MESSAGE_BYTES
                    self.max_message_bytes = limit
                    flags = command.connected.feature_flags
                    self.asks_without_creating = (
                        flags.supports_get_partitioned_metadata_without_auto_creation
                    )
                    self.knows_scalable_topics = flags.supports_scalable_topics
                    self._parser.max_frame_bytes = limit + FRAME_PADDING_BYTES
                    return
                if command.type == BaseCommand.AUTH_CHALLENGE:
                    opened.sendall(encode_command(self._authentication()))
                elif command.type == BaseCommand.ERROR:
                    raise RefusedError.of(command.error.error, command.error.message)

    def _authentication(self) -> BaseCommand:
        method, data = self._settings.authentication()
        response = CommandAuthResponse(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            response=AuthData(auth_method_name=method, auth_data=data),
        )
        return BaseCommand(type=BaseCommand.AUTH_RESPONSE, authResponse=response)

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        why = RefusedError("Disconnected", f"the connection to {self.address} was closed")
        try:
            while not self._finished():
                self._turn()
        except RefusedError as refused:
            why = refused
        except (OSError, FrameError, OptionError) as failed:
            why = RefusedError("Disconnected", f"{self.address}: {failed}")
        except Exception as surprise:  # noqa: BLE001 - nobody may wait for ever
            _LOG.exception("a defect ended the connection to %s", self.address)
            why = RefusedError("UnknownError", f"{self.address}: {type(surprise).__name__}")
        finally:
            self._end(why)

    def _finished(self) -> bool:
        if self._closing_at is None:
            return False
        return not self._outgoing or time.monotonic() > self._closing_at

    def _turn(self) -> None:
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        if self._selector.get_key(self._socket).events != interest:
            self._selector.modify(self._socket, interest)
        pause = self._settings.keep_alive_s if self._closing_at is None else _CLOSING_SECONDS
        for key, events in self._selector.select(pause / 2):
            if key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(64)
                # After the byte is gone and before the queue is looked at: no wake-up is lost.
                self._awake = False
                continue
            if events & selectors.EVENT_READ:
                self._receive()
        self._send()
        self._keep_alive()

    def _receive(self) -> None:
        view = memoryview(self._buffer)
        while True:
            try:
                size = self._socket.recv_into(view)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not size:
                raise RefusedError("Disconnected", f"{self.address} closed the connection")
            self._heard, self._pinged = time.monotonic(), False
            for frame in self._parser.feed(view[:size]):
                self._dispatch(frame)
            # What TLS has decrypted already is not announced again.
            if not isinstance(self._socket, ssl.SSLSocket) or not self._socket.pending():
                return

    def _send(self) -> None:
        outgoing = self._outgoing
        while outgoing:
            try:
                if isinstance(self._socket, ssl.SSLSocket):
                    sent = self._socket.send(outgoing[0])
                else:
                    with self._lock:  # others may append to it meanwhile
                        pieces = list(itertools.islice(outgoing, _PIECES))
                    sent = self._socket.sendmsg(pieces)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            while sent and sent >= len(outgoing[0]):
                sent -= len(outgoing.popleft())
            if sent:
                outgoing[0] = outgoing[0][sent:]

    def _keep_alive(self) -> None:
        silent = time.monotonic() - self._heard
        if silent > 2 * self._settings.keep_alive_s:
            raise RefusedError("Timeout", f"{self.address} was silent for {silent:.0f} s")
        if silent > self._settings.keep_alive_s and not self._pinged:
            self._pinged = True
            self._reply(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))

    def _reply(self, command: BaseCommand) -> None:
        with self._lock:
            self._outgoing.append(memoryview(encode_command(command)))

    def _dispatch(self, frame: Frame) -> None:
        command = frame.command
        kind = command.type
        if kind == BaseCommand.MESSAGE:
            consumer = self._consumers.get(command.message.consumer_id)
            if consumer is not None:
                consumer.on_message(command.message, frame.body)
        elif kind == BaseCommand.SEND_RECEIPT:
            producer = self._producers.get(command.send_receipt.producer_id)
            if producer is not None:
                producer.on_receipt(command.send_receipt)
        elif kind == BaseCommand.PING:
            self._reply(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
        elif kind == BaseCommand.AUTH_CHALLENGE:
            self._reply(self._authentication())
        elif kind == BaseCommand.SEND_ERROR:
            producer = self._producers.get(command.send_error.producer_id)
            if producer is not None:
                producer.on_error(command.send_error)
        else:
            self._dispatch_rare(command)

    def _dispatch_rare(self, command: BaseCommand) -> None:
        kind = command.type
        if kind == BaseCommand.REACHED_END_OF_TOPIC:
            consumer = self._consumers.get(command.reachedEndOfTopic.consumer_id)
            if consumer is not None:
                consumer.on_end()
        elif kind in _LEAVING:
            self._dispatch_leaving(command)
        elif kind == BaseCommand.ERROR:
            waiter = self._waiters.get(command.error.request_id)
            if waiter is not None:
                waiter.fail(RefusedError.of(command.error.error, command.error.message))
        elif kind in _ANSWERS:
            body = getattr(command, _ANSWERS[kind])
            # "Not ready": another answer follows.
            if kind != BaseCommand.PRODUCER_SUCCESS or body.producer_ready:
                waiter = self._waiters.get(getattr(body, _NUMBERED_BY.get(kind, "request_id")))
                if waiter is not None:
                    waiter.answer(command)

    def _dispatch_leaving(self, command: BaseCommand) -> None:
        kind = command.type
        why = RefusedError("Disconnected", "the broker gave the topic away")
        if kind == BaseCommand.CLOSE_PRODUCER:
            self._lose(self._producers, command.close_producer.producer_id, why)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            self._lose(self._consumers, command.close_consumer.consumer_id, why)
        elif kind == BaseCommand.TOPIC_MIGRATED:
            migrated = command.topicMigrated
            lost = self._consumers if migrated.resource_type else self._producers
            self._lose(lost, migrated.resource_id, why)

    @staticmethod
    def _lose(
        handlers: dict[int, ProducerHandler] | dict[int, ConsumerHandler],
        number: int,
        why: RefusedError,
    ) -> None:
        handler = handlers.pop(number, None)
        if handler is not None:
            handler.on_lost(why)

    def _end(self, why: RefusedError) -> None:
        if self._closing_at is None:
            _LOG.info("a connection is lost: %s (%s)", why.detail, why.result)
        with self._lock:
            self._failure = why
            self._outgoing.clear()
        for waiter in self._waiters.copy().values():
            waiter.fail(why)
        for handlers in (self._producers, self._consumers):
            for number in handlers.copy():
                self._lose(handlers, number, why)
        self._selector.close()
        for opened in (self._socket, self._waker, self._woken):
            opened.close()


_ANSWERS = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    BaseCommand.TC_CLIENT_CONNECT_RESPONSE: "tcClientConnectResponse",
    BaseCommand.NEW_TXN_RESPONSE: "newTxnResponse",
    BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
    BaseCommand.END_TXN_RESPONSE: "endTxnResponse",
    BaseCommand.SCALABLE_TOPIC_UPDATE: "scalableTopicUpdate",
    BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE: "watchTcAssignmentsUpdate",
}

_LEAVING = frozenset(
    {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER, BaseCommand.TOPIC_MIGRATED}
)

_NUMBERED_BY = {
    BaseCommand.SCALABLE_TOPIC_UPDATE: "session_id",
    BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE: "watch_id",
}
"""Of what a broker may say again later; the request's number is taken for the session's."""
