"""A lean client of Pulsar's admin REST API: what the segment log needs, and no more.

Every call is idempotent (or made so here) and bounded in time. It is retried a few times where the
broker is not ready: a topic that moves between brokers answers 503 for a moment. Where a redirect
led to a broker that is gone, or nobody is behind ``admin.url`` for a moment, the call begins again.
"""

from __future__ import annotations

import json
import math
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import urllib3

from pulsar_txn_spark.backends.pulsar.admin_pool import AdminPool
from pulsar_txn_spark.backends.pulsar.ledgers import ManagedLedger
from pulsar_txn_spark.backends.pulsar.passthrough import (
    Credentials,
    parse_admin_url,
    parse_passthrough,
)
from pulsar_txn_spark.backends.pulsar.redirects import (
    ATTEMPTS,
    FEW_TRIES,
    DowngradeError,
    OwnerAwayError,
    RedirectLoopError,
    RedirectRetry,
    begin_again,
    hung_up,
    was_redirected,
)
from pulsar_txn_spark.backends.pulsar.subscription_expiry import Expiry, SubscriptionExpiry
from pulsar_txn_spark.backends.pulsar.tls import TlsSettings
from pulsar_txn_spark.backports import time_from_iso
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    OptionError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentLogUnreachableError,
    SegmentNotFoundError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import native_topic

_T = TypeVar("_T")

_CONNECT_SECONDS = 10.0  # a broker that does not accept within that is not there
_READ_SECONDS = 30.0  # loading a topic with many ledgers may take that long
CALLS_AT_A_TIME = 4
"""So many connections are kept; more calls at once than that help nobody."""

_OPERATION_SECONDS = 30  # a cluster notices within that time that a broker is gone
_SEAL_PAUSES_S = (0.0, 0.1, 0.5, 2.0, 0.0)
"""Between tries to seal a topic of which the brokers have not stored that it is sealed."""

_BUSY_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 0.0)
"""Between tries of what a broker refuses with "Subscription Busy" (seen on 5.0.0-M1).

Or with "Topic is already fenced": it still deletes the topic, for a request that took too long. Or
with "Failed to acquire ownership": the topic is on its way from one broker to another.
"""
_BUSY_REASONS: dict[int, tuple[str, ...]] = {
    HTTPStatus.PRECONDITION_FAILED: ("Busy",),
    HTTPStatus.INTERNAL_SERVER_ERROR: ("already fenced", "Failed to acquire ownership"),
}
_UNREADY = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
"""What brokers, and proxies in front of them, answer while a topic moves."""

_LONGEST_REASON = 500

_HEADER_SECONDS = 2.0  # about 2 ms; of a chunk of a compressed message there is no answer at all
_SETTLE_SECONDS = 30.0  # topic policies travel through a system topic: usually 1 to 2 s
_SETTLE_POLL_SECONDS = 0.05
_BATCH_COUNT_HEADER = "X-Pulsar-num-batch-message"
_BATCH_SIZE_HEADER = "X-Pulsar-batch-size"
_PUBLISH_TIME_HEADER = "X-Pulsar-publish-time"
_COMPRESSION_HEADER = "X-Pulsar-compression"
_UNCOMPRESSED_HEADER = "X-Pulsar-uncompressed-size"
_MARKER_HEADER = "X-Pulsar-marker-type"
_COMPACTION = "__compaction"  # the subscription of Pulsar's own compaction
_ABORTED_HEADER = "X-Pulsar-txn-aborted"
_TRANSACTIONS_SETTING = "transactionCoordinatorEnabled"  # named by a broker that has them off
DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""What a broker takes in one message unless ``maxMessageSize`` says otherwise."""

_ALL_RETENTION = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_NO_RETENTION = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
KEEP_ALL_POLICIES: tuple[tuple[str, str, Any, str], ...] = (
    ("messageTTL", "messageTTL?messageTTL=0", None, "message TTL"),
    ("retention", "retention", _ALL_RETENTION, "retention"),
    (
        "inactiveTopicPolicies",
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 2**31 - 1,
            "deleteWhileInactive": False,
        },
        "deletion of inactive topics",
    ),
)
"""Policy -> (name, how it is set, body, what it is): with these no unread data is ever dropped."""

_QUOTA = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
_QUOTA_TYPES = ("destination_storage", "message_age")


class TransactionState(NamedTuple):
    """What Pulsar's own transactions say of a topic."""

    state: str
    max_read_position: Position
    ongoing: int
    buffer: str = ""  # the type of its snapshots, or who has replaced Pulsar's own buffer

    @property
    def recovering(self) -> bool:
        """Whether the broker does not know yet how far one may read."""
        return self.state not in ("Ready", "NoSnapshot", "FirstSnapshotting")


class EntryHeader(NamedTuple):
    """What an entry is: hidden from readers (a marker, or aborted), or a chunk of a message.

    ``messages`` and ``bytes`` count what is in it, ``published_ms`` is the producer's clock, and
    ``producer`` its name. Of an entry that the broker could not find or read, ``there`` is false,
    and nothing else is known. A message is ``empty`` that has no bytes, is compressed all the same,
    and stands outside of a batch.
    """

    hidden: bool
    message: str
    chunk: int
    chunks: int
    messages: int = 1
    bytes: int = 0
    published_ms: int | None = None
    there: bool = True
    producer: str = ""
    empty: bool = False


class PulsarAdmin:
    """Admin API of one cluster; safe to use from several threads.

    Parameters
    ----------
    config : PulsarConfig
        ``admin_url`` and the options ``pulsar.admin.*``; where those say nothing about
        authentication and TLS, ``pulsar.client.*`` does.

    Raises
    ------
    OptionError
        If an option is wrong, or the authentication is one that works for the binary protocol
        only.
    """

    def __init__(self, config: PulsarConfig) -> None:
        client = parse_passthrough("client", dict(config.client))
        own = parse_passthrough("admin", dict(config.admin))
        settings = client | {
            name: value
            for name, value in own.items()
            if name != "credentials" or value.method != "none"
        }
        self._credentials: Credentials = settings["credentials"]
        self._url = self._without_credentials(config.admin_url)
        if self._credentials.method in {"athenz", "oauth2"}:
            raise OptionError(
                f"the admin API takes a token, basic or TLS authentication, found "
                f"{self._credentials.method}; set pulsar.admin.authPluginClassName and "
                "pulsar.admin.authParams to one of those"
            )
        connect_ms = own.get("connection_timeout_ms", _CONNECT_SECONDS * 1000)
        read_ms = own.get("read_timeout_ms", _READ_SECONDS * 1000)
        self._operation_s: float = settings.get("operation_timeout_seconds", _OPERATION_SECONDS)
        self._retries = RedirectRetry(
            total=ATTEMPTS,
            connect=0,
            redirect=ATTEMPTS,
            allowed_methods=None,
            backoff_factor=0.2,
            respect_retry_after_header=False,  # nobody here waits for as long as a proxy says
            # A broker sends us on to the one that serves the topic: the same cluster.
            remove_headers_on_redirect=(),
        )
        tls = None
        if urlsplit(self._url).scheme == "https":
            tls = TlsSettings.of(settings | {"credentials": self._credentials})
        timeout = urllib3.Timeout(connect=connect_ms / 1000, read=read_ms / 1000)

        def new_pool(context: ssl.SSLContext | None) -> urllib3.PoolManager:
            return urllib3.PoolManager(
                timeout=timeout,
                retries=self._retries,
                maxsize=CALLS_AT_A_TIME,
                ssl_context=context,
            )

        self._pool = AdminPool(new_pool, tls)
        self._was_reached = False
        self._has_transactions = False
        self._off_at = -math.inf
        self._expiry = SubscriptionExpiry(self._ask_expiry)

    def _without_credentials(self, url: str) -> str:
        """Return a URL that may be shown; use the user and password that it holds."""
        try:
            shown, in_url = parse_admin_url(url)
        except ValueError as wrong:
            raise OptionError(f"option 'admin.url': expected {wrong}") from None
        if in_url.method == "none":
            return shown
        if self._credentials.method != "none":
            raise OptionError(
                "option 'admin.url' holds a user and password, but "
                "pulsar.admin.authPluginClassName (or that of pulsar.client) asks for "
                f"{self._credentials.method}: leave them out of the URL"
            )
        self._credentials = in_url
        return shown

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    # --- topics -------------------------------------------------------------------------------

    def create_topic(self, topic: str, properties: Mapping[str, str] | None = None) -> None:
        """Create a non-partitioned topic with its first properties; idempotent."""
        body = dict(properties) if properties else None
        self._call("PUT", _path(topic), "create the topic", topic, accept=(409,), body=body)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its subscriptions; idempotent."""
        self._call("DELETE", f"{_path(topic)}?force=true", "delete the topic", topic, accept=(404,))

    def terminate(self, topic: str) -> Position:
        """Seal a topic; idempotent.

        Returns
        -------
        Position
            Its last entry, EARLIEST if it has none.

        Raises
        ------
        SegmentNotFoundError
            If there is no such topic.
        SegmentLogUnavailableError
            If the brokers do not store that it is sealed.
        SegmentLogError
            If they have acknowledged entries behind its end.
        """
        for pause_s in _SEAL_PAUSES_S:
            self._call("POST", f"{_path(topic)}/terminate", "seal the topic", topic)
            # Brokers (4.0.7 at least) neither store nor refuse the sends in flight at that moment.
            # Their topic stays "temporarily unavailable", for readers as well. Loading it anew ends
            # that (apache/pulsar#26678).
            self.unload(topic)
            # A broker says "terminated" before it has stored it, or although it could not. What was
            # not stored is forgotten with the unloading, and the topic takes rows again.
            sealed = self._stored_end(topic)
            if sealed is not None:
                break
            time.sleep(pause_s)
        else:
            raise SegmentLogUnavailableError(
                f"cannot seal {topic}: in {len(_SEAL_PAUSES_S)} tries the broker said that it did, "
                "but it has not stored that. The topic would take rows again, so it does not count "
                "as sealed. Look into the broker's log for its metadata store, and try again"
            )
        sealed_at, last = sealed
        listed = self.managed_ledger(topic).ledgers
        behind = [ledger.last for ledger in listed if ledger.last > sealed_at]
        if behind:
            raise SegmentLogError(
                f"{topic} was sealed at {sealed_at}, but the broker has acknowledged entries up to "
                f"{behind[-1]}, which no reader gets. It replaced a ledger at that moment "
                "(apache/pulsar#25858). Nothing was skipped, and the segment stays as it is. "
                "Recover these entries from the bookies before you go on"
            )
        # Not what a broker says of the last entry: it may have lost the topic without knowing it.
        return last

    def _stored_end(self, topic: str) -> tuple[Position, Position] | None:
        """Return where the cluster's metadata say that a topic was sealed, and its last entry.

        The end may lie in a last ledger that is empty. None if the metadata name no end.
        """
        known = self._get(f"{_path(topic)}/internal-info", "read the metadata of", topic)
        end = known.get("terminatedPosition")
        if end is None:
            return None
        sealed_at = Position(int(end["ledgerId"]), int(end["entryId"]))
        if sealed_at.entry >= 0:
            return sealed_at, sealed_at
        before = (
            Position(int(ledger["ledgerId"]), int(ledger["entries"]) - 1)
            for ledger in known["ledgers"]
            if ledger.get("entries") and int(ledger["ledgerId"]) < sealed_at.ledger
        )
        return sealed_at, max(before, default=EARLIEST)

    def unload(self, topic: str) -> None:
        """Make the broker close a topic and load it anew on its next use."""
        self._call("PUT", f"{_path(topic)}/unload", "unload the topic", topic)

    def managed_ledger(self, topic: str) -> ManagedLedger:
        """Return where the topic's entries are.

        Raises
        ------
        SegmentNotFoundError
            If there is no such topic.
        """
        return ManagedLedger.of(
            self._get(f"{_path(topic)}/internalStats", "read the state of", topic)
        )

    def messages_since_load(self, topic: str) -> tuple[int, int]:
        """Return how many messages and bytes came in since the broker loaded the topic."""
        stats = self._stats(topic)
        return int(stats["msgInCounter"]), int(stats["bytesInCounter"])

    @property
    def transactions_off_at(self) -> float:
        """When a broker has said last that it has no transactions, by the monotonic clock.

        Never, once any has shown some: while the setting is rolled out, a broker speaks of itself
        only.
        """
        return -math.inf if self._has_transactions else self._off_at

    def transactions_of(self, topic: str, *, required: bool = True) -> TransactionState | None:
        """Return what a topic's own transactions say, None if the broker has none.

        Unless `required`, None as well where we may not ask.

        Raises
        ------
        SegmentNotFoundError
            If the broker has not loaded the topic.
        SegmentLogUnavailableError
            If it does not say.
        """
        tenant, namespace, name = _parts(topic)
        action = "read the transaction buffer of"
        answer = self._call(
            "GET",
            f"/transactions/transactionBufferStats/{tenant}/{namespace}/{name}",
            action,
            topic,
            accept=() if required else (401, 403),
            version="v3",
        )
        if answer.status in {401, 403}:
            return None
        if _has_no_transactions(answer):
            self._off_at = time.monotonic()
            return None
        stats = self._content(answer, action, topic)
        if not stats:
            return None  # a topic of the system's, which has no transactions
        self._has_transactions = True
        return TransactionState(
            stats["state"],
            Position.parse(stats["maxReadPosition"]),
            int(stats.get("ongoingTxnSize") or 0),
            stats.get("snapshotType") or "",
        )

    def settled_transactions_of(
        self, topic: str, *, required: bool = True
    ) -> TransactionState | None:
        """Return the same, once the broker has loaded the topic and recovered its transactions.

        Until then it names the last entry, whatever is undecided before it (seen on 4.0.7).

        Raises
        ------
        SegmentNotFoundError
            If there is no such topic.
        SegmentLogUnavailableError
            If the broker does not say in time.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                transactions = self.transactions_of(topic, required=required)
            except SegmentNotFoundError:
                self.managed_ledger(topic)  # this loads it, or says that it is gone
                state = "not loaded"
            else:
                if transactions is None or not transactions.recovering:
                    return transactions
                state = transactions.state
            if time.monotonic() > deadline:
                raise SegmentLogUnavailableError(
                    f"the broker does not say within {_SETTLE_SECONDS:.0f} s how far {topic} may "
                    f"be read (its transactions are {state}): nothing was read. Look into the "
                    "broker's log and try again"
                )
            time.sleep(_SETTLE_POLL_SECONDS)

    def knows_transaction(self, most: int, least: int) -> bool:
        """Tell whether one of Pulsar's own coordinators knows a transaction of these numbers."""
        answer = self._call(
            "GET",
            f"/transactions/transactionMetadata/{most}/{least}",
            "look for a transaction in",
            self._url,
            accept=(400, 401, 403, 404, 500, 503),
            version="v3",
        )
        return answer.status == HTTPStatus.OK

    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has, 0 = it has none; None = there is no topic."""
        action = "read the partitions of"
        answer = self._call("GET", f"{_path(topic)}/partitions", action, topic, accept=(404,))
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        return int(self._content(answer, action, topic)["partitions"])

    def has_scalable(self, tenant: str, namespace: str, name: str) -> bool:
        """Tell whether the broker has a scalable topic of its own; none of before 5.0 has.

        False as well where we may not ask.
        """
        parts = "/".join(quote(part, safe="") for part in (tenant, namespace, name))
        answer = self._call(
            "GET",
            f"/scalable/{parts}",
            "look for a scalable topic",
            f"{tenant}/{namespace}/{name}",
            accept=(401, 403, 404, 405),
        )
        return answer.status == HTTPStatus.OK

    def scalable_topic(self, name: str) -> dict[str, Any] | None:
        """Return what Pulsar 5 knows of a scalable topic, None if there is none.

        Parameters
        ----------
        name : str
            ``tenant/namespace/name``.

        Raises
        ------
        SegmentLogError
        """
        path = f"/scalable/{quote(name)}"
        answer = self._call("GET", path, "look up", f"topic://{name}", accept=(404,))
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        known: dict[str, Any] = self._content(answer, "look up", f"topic://{name}")
        return known

    def create_scalable_topic(self, name: str, properties: Mapping[str, str]) -> None:
        """Create a scalable topic of one segment, unless it is there.

        Raises
        ------
        SegmentLogError
        """
        path = f"/scalable/{quote(name)}?numInitialSegments=1"
        self._call("PUT", path, "create", f"topic://{name}", body=dict(properties), accept=(409,))

    def never_scale(self, name: str) -> None:
        """Let brokers neither split nor merge a scalable topic by themselves.

        Raises
        ------
        SegmentLogError
        """
        path = f"/scalable/{quote(name)}/autoScalePolicy"
        self._call("POST", path, "set a policy of", f"topic://{name}", body={"enabled": False})

    def topics(self, tenant: str, namespace: str) -> list[str]:
        """Return the full names of a namespace's topics, with partitions one by one.

        Raises
        ------
        SegmentNotFoundError
            If there is no such namespace.
        """
        path = f"/persistent/{quote(tenant, safe='')}/{quote(namespace, safe='')}"
        names: list[str] = self._get(path, "list the topics of", f"{tenant}/{namespace}")
        return names

    def scalable_topics(self, tenant: str, namespace: str) -> list[str]:
        """Return the full names of a namespace's scalable topics, as Pulsar 5 names them.

        Raises
        ------
        SegmentNotFoundError
            If there is no such namespace, or no scalable topics on these brokers.
        """
        path = f"/scalable/{quote(tenant, safe='')}/{quote(namespace, safe='')}"
        what = "list the scalable topics of"
        names: list[str] = self._get(path, what, f"{tenant}/{namespace}")
        return names

    def entry_header(self, topic: str, position: Position) -> EntryHeader:
        """Return what an entry's metadata say of it; one that is not there says nothing.

        Raises
        ------
        SegmentLogUnavailableError
            If there is no answer within a short time: of a chunk of a compressed message there
            never is one.
        """
        answer = self._call(
            "HEAD",
            f"{_path(topic)}/ledger/{position.ledger}/entry/{position.entry}",
            f"look at entry {position} of",
            topic,
            accept=(404, 500),
            patience_s=_HEADER_SECONDS,
        )
        if answer.status != HTTPStatus.OK:
            return EntryHeader(hidden=False, message="", chunk=0, chunks=1, there=False)
        headers = answer.headers
        size = headers.get(_BATCH_SIZE_HEADER) or headers.get("Content-Length") or "0"
        text = headers.get(_PUBLISH_TIME_HEADER)
        return EntryHeader(
            hidden=_MARKER_HEADER in headers or headers.get(_ABORTED_HEADER) == "true",
            message=headers.get("X-Pulsar-uuid", ""),
            chunk=int(headers.get("X-Pulsar-chunk-id", 0)),
            chunks=int(headers.get("X-Pulsar-num-chunks-from-msg", 1)),
            messages=int(headers.get(_BATCH_COUNT_HEADER, "1")),
            bytes=int(size),
            published_ms=(round(time_from_iso(text).timestamp() * 1000) if text else None),
            producer=headers.get("X-Pulsar-producer-name", ""),
            empty=(
                headers.get(_COMPRESSION_HEADER, "NONE") != "NONE"
                and headers.get(_UNCOMPRESSED_HEADER, "0") == "0"
                and _BATCH_COUNT_HEADER not in headers
            ),
        )

    def producers(self, topic: str) -> list[str]:
        """Return the names of the producers that are connected."""
        stats = self._get(
            f"{_path(topic)}/stats?excludeConsumers=true", "read statistics of", topic
        )
        return [str(publisher.get("producerName")) for publisher in stats.get("publishers") or ()]

    def properties(self, topic: str) -> dict[str, str] | None:
        """Return the topic's properties, None if there is no such topic."""
        action = "read the properties of"
        answer = self._call("GET", f"{_path(topic)}/properties", action, topic, accept=(404,))
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        properties: dict[str, str] = self._content(answer, action, topic) or {}
        return properties

    def set_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Set some properties of a topic and leave the others as they are."""
        self._call(
            "PUT", f"{_path(topic)}/properties", "set properties of", topic, body=dict(properties)
        )

    def remove_property(self, topic: str, name: str) -> None:
        """Take a property from a topic; idempotent."""
        path = f"{_path(topic)}/properties?key={quote(name, safe='')}"
        self._call("DELETE", path, "remove a property of", topic, accept=(404,))

    def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription; idempotent."""
        path = f"{_path(topic)}/subscription/{quote(name, safe='')}?force=true"
        self._call("DELETE", path, "delete a subscription of", topic, accept=(404,))

    def create_subscription(self, topic: str, name: str) -> None:
        """Create a durable subscription that stands before the first entry; idempotent."""
        self._call(
            "PUT",
            f"{_path(topic)}/subscription/{quote(name, safe='')}",
            "create a subscription of",
            topic,
            body={"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
            accept=(409,),
        )

    def move_subscription(self, topic: str, name: str, to: Position) -> None:
        """Let a subscription stand before the entry `to`: what lies before it is acknowledged."""
        self._call(
            "POST",
            f"{_path(topic)}/subscription/{quote(name, safe='')}/resetcursor",
            "move a subscription of",
            topic,
            body={"ledgerId": to.ledger, "entryId": to.entry, "partitionIndex": -1},
        )

    def acknowledged_by(self, topic: str, name: str) -> Position:
        """Return up to where a durable subscription has acknowledged everything.

        Raises
        ------
        SegmentNotFoundError
            If there is no such topic or subscription.
        """
        stats = self._get(f"{_path(topic)}/internalStats", "read a cursor of", topic)
        cursor = stats["cursors"].get(name)
        if cursor is None:
            raise SegmentNotFoundError(
                f"the subscription {name} of {topic} is not there. Somebody has deleted it, or it "
                "has expired, and what it retained may be gone. Restore the topic from a backup, "
                "or delete it and set sinkFirstBatch if what is missing is known to you"
            )
        return Position.parse(cursor["markDeletePosition"])

    def trim_ledgers(self, topic: str) -> None:
        """Ask the broker to remove what it need not keep; it does so later by itself as well."""
        self._call("POST", f"{_path(topic)}/trim", "trim", topic, accept=(403, 404, 405))

    def subscriptions(self, topic: str) -> list[str]:
        """Return the names of the topic's durable subscriptions."""
        names: list[str] = self._get(f"{_path(topic)}/subscriptions", "list subscriptions", topic)
        return names

    def backlogs(self, topic: str) -> dict[str, int]:
        """Return the messages that durable subscriptions have not acknowledged, none if all are.

        Replication to other clusters counts, too, by their names. Compaction does not: what it has
        not seen needs nobody.
        """
        stats = self._get(
            f"{_path(topic)}/stats?getPreciseBacklog=true&excludePublishers=true"
            "&excludeConsumers=true",
            "read backlogs of",
            topic,
        )
        backlogs = {
            name: int(subscription.get("msgBacklog", 0))
            for name, subscription in (stats.get("subscriptions") or {}).items()
            if subscription.get("isDurable", True) and name != _COMPACTION
        }
        for cluster, replication in (stats.get("replication") or {}).items():
            backlogs[f"replication to {cluster}"] = int(replication.get("replicationBacklog", 0))
        return {name: messages for name, messages in backlogs.items() if messages > 0}

    # --- policies -----------------------------------------------------------------------------

    def keep_all_data(self, topic: str) -> None:
        """Set topic-level policies by which the broker drops nothing, and wait until they hold.

        Raises
        ------
        SegmentLogError
            If the broker refuses topic-level policies or does not apply them.
        """
        base = _policy_path(topic)
        for name, setter, body, what in KEEP_ALL_POLICIES:
            self._set_policy(topic, f"{base}/{setter}", body, what)
            wanted = 0 if body is None else body
            self._await(
                lambda name=name: self._get(  # type: ignore[misc]
                    f"{base}/{name}?applied=true", "read policies of", topic
                ),
                lambda current, wanted=wanted: current == wanted,  # type: ignore[misc]
                f"the policy {what} of {topic} to be {wanted}",
            )
        for kind in _QUOTA_TYPES:
            self._set_policy(
                topic, f"{base}/backlogQuota?backlogQuotaType={kind}", _QUOTA, "backlog quota"
            )
        self._await(
            lambda: self._get(f"{base}/backlogQuotaMap?applied=true", "read policies of", topic),
            _no_quota,
            f"the backlog quotas of {topic} to be unlimited",
        )
        self.require_no_expiry(topic)

    def retain_all(self, topic: str) -> None:
        """Let the broker remove nothing of a topic, whatever its subscriptions say."""
        self._set_retention(topic, _ALL_RETENTION)

    def retain_nothing(self, topic: str) -> None:
        """Let the broker remove what every subscription of a topic has acknowledged.

        Raises
        ------
        SegmentLogError
            If subscriptions expire there. The broker removes nothing of the topic then.
        """
        expiry = self.subscription_expiry(topic)
        if expiry.minutes:
            self.retain_all(topic)
            raise _expiring(f"the broker's retention of {topic} stays on", expiry)
        self._set_retention(topic, _NO_RETENTION)

    def _set_retention(self, topic: str, retention: Mapping[str, int]) -> None:
        path = f"{_policy_path(topic)}/retention"
        if self._get(f"{path}?applied=true", "read policies of", topic) != retention:
            self._set_policy(topic, path, retention, "retention")

    def forget_policies(self, topic: str) -> None:
        """Take back what :meth:`keep_all_data` has set: the namespace's policies hold again."""
        base = _policy_path(topic)
        paths = [name for name, *_ in KEEP_ALL_POLICIES]
        paths += [f"backlogQuota?backlogQuotaType={kind}" for kind in _QUOTA_TYPES]
        for path in paths:
            action = "remove policies of"
            self._call("DELETE", f"{base}/{path}", action, topic, accept=(404, 405, 412))

    def deduplicate(self, topic: str) -> None:
        """Switch broker deduplication on, and wait until the broker says that it works.

        A known producer's first message was accepted twice before the status said so.
        """
        self._set_policy(topic, f"{_path(topic)}/deduplicationEnabled", True, "deduplication")
        self._await(
            lambda: self._stats(topic).get("deduplicationStatus"),
            lambda state: state == "Enabled",
            f"deduplication of {topic} to be Enabled",
        )

    def deduplication_status(self, topic: str) -> str:
        """Return what the broker says of a topic's deduplication; ``Enabled`` = it works."""
        return str(self._stats(topic).get("deduplicationStatus"))

    def broker_version(self) -> str:
        """Return the version of the broker that answers."""
        answer = self._call("GET", "/brokers/version", "ask the version of", "the broker")
        return answer.data.decode(errors="replace").strip()

    def max_message_bytes(self) -> int:
        """Return the broker's ``maxMessageSize``, or its default where we may not ask."""
        try:
            configuration = self._get(
                "/brokers/configuration/runtime", "read the configuration", ""
            )
            return int(configuration.get("maxMessageSize", DEFAULT_MAX_MESSAGE_BYTES))
        except SegmentLogError:
            return DEFAULT_MAX_MESSAGE_BYTES

    def _set_policy(self, topic: str, path: str, body: Any, what: str) -> None:
        answer = self._call("POST", path, "set policies of", topic, body=body, accept=(405, 412))
        if answer.status in {405, 412}:
            raise SegmentLogError(
                f"the broker refused the topic-level policy {what} for {topic} "
                f"({_reason(answer)}): without it the broker may drop data that was not read. Set "
                "systemTopicEnabled=true and topicLevelPoliciesEnabled=true on the brokers"
            )

    def subscription_expiry(self, topic: str) -> Expiry:
        """Return when subscriptions in a topic's namespace expire, as known some seconds ago."""
        return self._expiry.of("/".join(topic.partition("://")[2].split("/")[:2]))

    def require_no_expiry(self, topic: str) -> None:
        """Refuse a topic whose subscriptions expire: there is no topic-level policy for it."""
        expiry = self.subscription_expiry(topic)
        if expiry.minutes:
            raise _expiring(f"{topic} would lose data", expiry)

    def _ask_expiry(self, path: str) -> bytes | None:
        refusals = (401, 403) if path.startswith("/namespaces/") else (401, 403, 404, 405, 501)
        answer = self._call("GET", path, "read the setting", path, accept=refusals)
        return None if answer.status in refusals else answer.data

    # --- plumbing -----------------------------------------------------------------------------

    def _stats(self, topic: str) -> dict[str, Any]:
        stats: dict[str, Any] = self._get(
            f"{_path(topic)}/stats?excludePublishers=true&excludeConsumers=true",
            "read statistics of",
            topic,
        )
        return stats

    def _await(self, read: Callable[[], _T], good: Callable[[_T], bool], what: str) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not good(state := read()):
            if time.monotonic() > deadline:
                raise SegmentLogError(
                    f"expected {what} within {_SETTLE_SECONDS:.0f} s, found {state!r}: writing "
                    "would not be safe. Check that systemTopicEnabled and "
                    "topicLevelPoliciesEnabled are true on the brokers and that no other tool "
                    "sets that policy"
                )
            time.sleep(_SETTLE_POLL_SECONDS)

    def _get(self, path: str, action: str, topic: str) -> Any:
        return self._content(self._call("GET", path, action, topic), action, topic)

    def _call(
        self,
        method: str,
        path: str,
        action: str,
        topic: str,
        *,
        body: Any = None,
        accept: tuple[int, ...] = (),
        version: str = "v2",
        patience_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        bounds: dict[str, Any] = {}
        if patience_s is not None:
            bounds["timeout"] = urllib3.Timeout(connect=patience_s, read=patience_s)
            bounds["retries"] = self._retries.new(read=0)
        headers = {"Content-Type": "application/json"} | self._authorization()
        content = None if body is None else json.dumps(body).encode()

        def send() -> urllib3.BaseHTTPResponse:
            url = f"{self._url}/admin/{version}{path}"
            return self._pool.request(method, url, body=content, headers=headers, **bounds)

        try:
            answer = self._patiently(send, accept)
        except urllib3.exceptions.HTTPError as failed:
            message = f"cannot {action} {topic}: {self._unanswered(failed)}"
            if _unconnected(failed):
                raise SegmentLogUnreachableError(message) from None
            raise SegmentLogUnavailableError(message) from None
        if answer.status < HTTPStatus.MULTIPLE_CHOICES:
            if _is_page(answer):
                raise self._foreign(answer, action, topic)
            return answer
        if answer.status in accept or _has_no_transactions(answer):
            return answer
        raise self._error(answer, action, topic)

    def _patiently(
        self, send: Callable[[], urllib3.BaseHTTPResponse], accept: tuple[int, ...]
    ) -> urllib3.BaseHTTPResponse:
        """Send a request again while it may pass soon, within its time; return the last answer."""

        def tries_of(answer: urllib3.BaseHTTPResponse) -> float:
            return _tries_of(answer, accept)

        deadline = time.monotonic() + self._operation_s
        for pause_s in _BUSY_PAUSES_S:
            left_s = deadline - time.monotonic()
            answer = begin_again(send, left_s, tries_of, was_reached=self._was_reached)
            self._was_reached = True
            if not _may_pass_later(answer) or time.monotonic() + pause_s > deadline:
                break
            time.sleep(pause_s)
        return answer

    def _content(self, answer: urllib3.BaseHTTPResponse, action: str, topic: str) -> Any:
        """Return what an answer says; None if it is empty."""
        try:
            return json.loads(answer.data) if answer.data else None
        except ValueError:
            raise self._foreign(answer, action, topic) from None

    def _foreign(
        self, answer: urllib3.BaseHTTPResponse, action: str, topic: str
    ) -> SegmentLogError:
        return SegmentLogError(
            f"cannot {action} {topic}: what answers at {self._url} is not Pulsar's admin API "
            f"({answer.status}: {_reason(answer)}). Check admin.url: it may lead to a login page, "
            "or to another server"
        )

    def _unanswered(self, failed: urllib3.exceptions.HTTPError) -> str:
        if isinstance(failed, DowngradeError):
            return (
                f"{failed.source} speaks https, and redirects to http://{failed.target}. Nothing "
                "was sent there: the credentials would have gone out in clear. Let a load "
                "balancer lead to the brokers' webServicePortTls, or set admin.url to a Pulsar "
                "proxy"
            )
        if isinstance(failed, OwnerAwayError):
            return (
                f"the admin API at {self._url} redirects to the broker {failed.address}, which "
                f"does not answer ({_cause(failed)}). It was tried for {self._operation_s:.0f} s; "
                "check that broker, and that it can be reached from here"
            )
        if isinstance(failed, RedirectLoopError):
            return (
                f"the brokers behind {self._url} redirect to each other, {failed.address} among "
                f"them, and none serves the topic. They were asked for {self._operation_s:.0f} s; "
                "look into their logs, and check that all of them are of the same cluster"
            )
        if self._was_reached and hung_up(getattr(failed, "reason", None)):
            return (
                f"the admin API at {self._url} has answered before, but closes the connection now "
                f"({_cause(failed)}). It was tried for {self._operation_s:.0f} s; check that a "
                "broker is behind that address"
            )
        return (
            f"the admin API at {self._url} does not answer ({_cause(failed)}); check admin.url, "
            "and for https the TLS options"
        )

    def _error(self, answer: urllib3.BaseHTTPResponse, action: str, topic: str) -> SegmentLogError:
        reason = _reason(answer)
        if answer.status in {401, 403}:
            return SegmentLogUnavailableError(
                f"cannot {action} {topic}: the admin API refuses us ({answer.status}: {reason}); "
                "check pulsar.admin.authPluginClassName and pulsar.admin.authParams (or those of "
                "pulsar.client) and the role's permission on the namespace"
            )
        if answer.status == HTTPStatus.NOT_FOUND:
            return SegmentNotFoundError(
                f"cannot {action} {topic}: it is not there ({reason}); check the tenant, the "
                "namespace and whether the segment was deleted"
            )
        later = answer.status == HTTPStatus.TOO_MANY_REQUESTS
        if later or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return SegmentLogUnavailableError(
                f"cannot {action} {topic}: the broker answers {answer.status} ({reason}); look "
                "into the broker's log and try again"
            )
        return SegmentLogError(
            f"cannot {action} {topic}: the broker answers {answer.status} ({reason})"
        )

    def _authorization(self) -> dict[str, str]:
        if self._credentials.method == "token":
            return {"Authorization": f"Bearer {self._credentials.token()}"}
        if self._credentials.method == "basic":
            pair = f"{self._credentials['userId']}:{self._credentials['password']}"
            return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
        return {}


def _expiring(what: str, expiry: Expiry) -> SegmentLogError:
    return SegmentLogError(f"{what}: {expiry}. Run '{expiry.remedy}' or use another namespace")


def _parts(topic: str) -> tuple[str, str, str]:
    domain, separator, rest = topic.partition("://")
    tenant, _, rest = rest.partition("/")
    namespace, _, name = rest.partition("/")
    if domain != "persistent" or not (separator and tenant and namespace and name):
        raise OptionError(f"expected persistent://tenant/namespace/name, found {topic!r}")
    return quote(tenant, safe=""), quote(namespace, safe=""), quote(name, safe="")


def _path(topic: str) -> str:
    return "/persistent/" + "/".join(_parts(topic))


def _policy_path(topic: str) -> str:
    """Return the path of a topic's policies; partitions have none of their own."""
    return native_topic(_path(topic))


def _no_quota(policy: Mapping[str, Mapping[str, Any]] | None) -> bool:
    quotas = policy or {}
    return all(
        kind in quotas and quotas[kind]["limitSize"] < 0 and quotas[kind]["limitTime"] < 0
        for kind in _QUOTA_TYPES
    )


def _tries_of(answer: urllib3.BaseHTTPResponse, accept: tuple[int, ...]) -> float:
    """Return how often a call is sent at most that has this answer.

    What a broker itself says of a topic that it serves may last. A broker that a redirect named may
    be about to end. A proxy has nobody to ask until its broker has started.
    """
    if answer.status not in _UNREADY or _has_no_transactions(answer):
        return 1
    said_by_asked = _stated_reason(answer) is not None and not was_redirected(answer.retries)
    return FEW_TRIES if said_by_asked or answer.status in accept else math.inf


def _has_no_transactions(answer: urllib3.BaseHTTPResponse) -> bool:
    """Tell whether the broker that was asked says that its transactions are switched off.

    It does so before it looks whose the topic is: it speaks of itself, and not of the topic.
    """
    return (
        answer.status == HTTPStatus.SERVICE_UNAVAILABLE
        and _TRANSACTIONS_SETTING in answer.data.decode(errors="replace")
    )


def _is_page(answer: urllib3.BaseHTTPResponse) -> bool:
    """Tell whether a success is a web page, which Pulsar's admin API has none of."""
    kind = answer.headers.get("Content-Type") or ""
    return kind.startswith("text/html") or answer.data.lstrip().startswith(b"<")


def _may_pass_later(answer: urllib3.BaseHTTPResponse) -> bool:
    """Tell whether the same request may pass soon, though the broker has refused it.

    The broker is about something else with the very subscription or topic. Or its web server has
    answered 400 by itself, so that nothing was done: whatever Pulsar refuses has a reason. Seen on
    4.0.7 under load, once among thousands of requests that differed in nothing. Or there were too
    many requests a moment ago.
    """
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        return True
    if answer.status == HTTPStatus.BAD_REQUEST:
        return _stated_reason(answer) is None
    reasons = _BUSY_REASONS.get(answer.status, ())
    return any(said in _reason(answer) for said in reasons)


def _reason(answer: urllib3.BaseHTTPResponse) -> str:
    stated = _stated_reason(answer)
    if stated is not None:
        return stated
    page = " ".join(re.sub("<[^>]*>", " ", answer.data.decode(errors="replace")).split())
    return page[:_LONGEST_REASON] or answer.reason or f"status {answer.status}"


def _stated_reason(answer: urllib3.BaseHTTPResponse) -> str | None:
    """Return the reason that Pulsar states; None if it was not Pulsar that answered."""
    try:
        return str(json.loads(answer.data)["reason"])[:_LONGEST_REASON]
    except (ValueError, KeyError, TypeError):
        return None


def _unconnected(failed: urllib3.exceptions.HTTPError) -> bool:
    """Tell whether nobody could connect to ``admin.url``, so that no topic's call gets through.

    The broker of one topic may be away, and one topic may take too long.
    """
    reasons = (urllib3.exceptions.ConnectTimeoutError, urllib3.exceptions.SSLError)
    away = isinstance(failed, OwnerAwayError)
    return not away and isinstance(getattr(failed, "reason", None) or failed, reasons)


def _cause(failed: urllib3.exceptions.HTTPError) -> str:
    reason = getattr(failed, "reason", None) or failed
    return f"{type(reason).__name__}: {reason}"[:300]
