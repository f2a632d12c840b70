"""A broker whose transaction coordinator is the plug-in's, and its transactions in the store."""

from __future__ import annotations

import redis

from integration.support.gated import Gated
from integration.support.redis_cluster import RedisCluster
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import Code, EndedBy, TxnHeader, TxnId, TxnState
from pulsar_txn_spark.store.redis.scripts import COORDINATORS
from pulsar_txn_spark.testing.broker_jar import COORDINATOR
from pulsar_txn_spark.testing.pulsar_cluster import PulsarCluster
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer

SETTINGS = {"transactionMetadataStoreProviderClassName": COORDINATOR}


def coordinated(server: PulsarServer | PulsarCluster, store: RedisServer | RedisCluster) -> Gated:
    """Initialize the store: it has to be there before the broker's coordinator opens it."""
    found = Gated.of(server, store)
    found.components()
    return found


def decide(gated: Gated, txn: TxnId) -> TxnHeader:
    """Commit a client's transaction in its header alone; return what that was before."""
    transactions = gated.components().store.transactions
    header = transactions.read(txn)
    assert header is not None
    outcome = Outcome()
    for intent in header.intents:
        kind, where, writer = intent.split("|", 2)
        if kind == "W":
            outcome.winners.add(segment=where, writer=writer)
    record = outcome.SerializeToString(deterministic=True)
    answer = transactions.end(header.txn, TxnState.COMMITTED, record, EndedBy.OWNER, header.nonce)
    assert answer.code is Code.OK
    return header


def unended(gated: Gated) -> list[bytes]:
    """Return the transactions of clients that coordinators have yet to end."""
    with redis.Redis.from_url(gated.store.url) as connection:
        indexes = [f"{{tc{number}}}:idx:txn-pulsar" for number in range(COORDINATORS)]
        return [txn for index in indexes for txn in connection.zrange(index, 0, -1)]


def reconfigure(server: PulsarServer, **settings: str | None) -> None:
    """Restart a broker with other settings; None takes one out."""
    server.pause()
    config = server.log_path.parent / "broker.conf"
    found = dict(line.split("=", 1) for line in config.read_text().splitlines())
    chosen = {name: value for name, value in (found | settings).items() if value is not None}
    config.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
    server.resume()
