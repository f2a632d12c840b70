"""The metadata store on Redis, put together of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_txn_spark import metrics
from pulsar_txn_spark.errors import (
    StoreUnavailableError,
)
from pulsar_txn_spark.store.records import (
    Seen,
    StoreIdentity,
)
from pulsar_txn_spark.store.redis.event_feed import RedisEventFeed
from pulsar_txn_spark.store.redis.merged import RedisMergedSteps
from pulsar_txn_spark.store.redis.scripts import NO_REPLY, Call, Redis, Scripts, flat, text
from pulsar_txn_spark.store.redis.segments import RedisSegmentStore
from pulsar_txn_spark.store.redis.sinks import RedisQueryStore, RedisSinkStore
from pulsar_txn_spark.store.redis.subscriptions import RedisSubscriptionStore
from pulsar_txn_spark.store.redis.topics import RedisMetaStore, RedisTopicStore
from pulsar_txn_spark.store.redis.transactions import (
    RedisOpLogStore,
    RedisStageStore,
    RedisTransactionStore,
)

_FLUSHED_TO = 0  # the coordinator that keeps counts which belong to none


class RedisStore:
    """The metadata store on one Redis, or on a Redis Cluster: a part for each kind of record.

    Parameters
    ----------
    client : redis.Redis or redis.RedisCluster
        Verified, as :func:`~pulsar_txn_spark.store.redis.connection.connect` returns it.
    coordinators : int, optional
        How many TC shards the store must have; a new one gets so many, or `COORDINATORS`.
    place : str, optional
        Where it is, as errors name it.

    Raises
    ------
    StoreUnavailableError
        If the server cannot be reached.
    OptionError
        If the store was made with another number of coordinators.
    StoreError
        If the store was made by a version of this package with another schema.
    """

    def __init__(
        self, client: Redis, coordinators: int | None = None, place: str = "of this client"
    ) -> None:
        self.place = place
        self.scripts = Scripts(client, coordinators)
        self.meta = RedisMetaStore(self.scripts)
        self.topics = RedisTopicStore(self.scripts)
        self.transactions = RedisTransactionStore(self.scripts)
        self.op_log = RedisOpLogStore(self.scripts)
        self.stages = RedisStageStore(self.scripts)
        self.segments = RedisSegmentStore(self.scripts)
        self.subscriptions = RedisSubscriptionStore(self.scripts)
        self.merged = RedisMergedSteps(self.scripts)
        self.sinks = RedisSinkStore(self.scripts)
        self.queries = RedisQueryStore(self.scripts)

    @property
    def identity(self) -> StoreIdentity:
        """The store's identity, read when it was opened."""
        return self.scripts.identity

    @property
    def round_trips(self) -> int:
        """How many round trips this process has made so far."""
        return self.scripts.round_trips

    @property
    def counters(self) -> metrics.Counters:
        """What this process has counted and not flushed to the store yet."""
        return self.scripts.counters

    def seen(self, tag: str) -> Seen:
        """Return the newest state of a tag that this process has seen."""
        return self.scripts.seen(tag)

    def raise_last_seen(self, states: Mapping[str, Seen]) -> None:
        """Refuse from now on any tag whose past lacks a state that others have seen of it."""
        self.scripts.raise_last_seen(states)

    def event_feed(self) -> RedisEventFeed:
        """Return a feed that follows nothing yet; close it."""
        return RedisEventFeed(self.scripts.client, self.newest_events)

    def newest_events(self, tags: Sequence[str]) -> list[str]:
        """Return the id of the newest event of each tag."""
        calls = [Call("events_newest", tag, ["events"], []) for tag in tags]
        return [text(reply[2]) for reply in self.scripts.run_all(calls)]

    def flush_counters(self) -> None:
        """Add the counters to the counts in the store; without a reply what is in it is dropped."""
        counts = self.scripts.counters.drain()
        if not counts:
            return
        call = Call("metrics_add", f"tc{_FLUSHED_TO}", ["metrics"], flat(counts))
        try:
            reply = self.scripts.ask_once(call)
        except (*NO_REPLY, StoreUnavailableError):
            return  # it may have arrived: sent again it might count twice
        self.scripts.checked(call, reply)
