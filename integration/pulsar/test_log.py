"""The Pulsar backend of the segment log: the contract suite, and what only Pulsar has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar as pulsar_client
import pytest

from integration.support.admin_rest import AdminRest, path_of
from pulsar_txn_spark.backends.pulsar.log import INTERNAL_SUBSCRIPTION, PulsarSegmentLog
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.errors import (
    DataLossError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import CONTAINS_TXN, SegmentRef
from pulsar_txn_spark.testing.pulsar_server import Broker, free_ports
from tests.contract.segment_log import (
    EVERY_COLUMN,
    EVERY_KIND_OF_ROW,
    Harness,
    Row,
    SegmentLogContract,
    as_rows,
    everything,  # noqa: F401 - for the script that is killed
    numbered,
    positions,
    read,
    read_values,
    table,
    values,
    write,
)

QUIET = pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Warn)
PREFIX = "persistent://public/default/"


@pytest.fixture
def transport() -> str:
    return "client"


@pytest.fixture
def harness(pulsar: Broker, transport: str) -> Iterator[Harness]:
    config = PulsarConfig(pulsar.service_url, pulsar.admin_url, transport=transport)
    harness = Harness(
        log=PulsarSegmentLog(config),
        log_name_prefix=PREFIX,
        too_large_bytes=5 * 1024 * 1024 - 100,  # a default bookie would not store it
        any_key=transport == "wire",
    )
    yield harness
    harness.close()


class TestPulsarLog(SegmentLogContract):
    pass


class TestPulsarLogOverTheWire(SegmentLogContract):
    @pytest.fixture
    def transport(self) -> str:
        return "wire"


# --- what only Pulsar has -------------------------------------------------------------------------


@pytest.fixture
def namespace(api: AdminRest) -> str:
    name = f"public/{uuid.uuid4().hex}"
    api("PUT", f"namespaces/{name}", {})
    return name


def segment_in(harness: Harness, namespace: str) -> SegmentRef:
    name = uuid.uuid4().hex
    segment = SegmentRef(name, "topic://public/default/t", f"persistent://{namespace}/{name}")
    harness.segments.append(segment)
    return segment


def log_of(pulsar: Broker, transport: str = "auto", **options: dict[str, str]) -> PulsarSegmentLog:
    pairs: dict[str, Any] = {kind: as_pairs(found) for kind, found in options.items()}
    config = PulsarConfig(pulsar.service_url, pulsar.admin_url, transport=transport, **pairs)
    return PulsarSegmentLog(config)


def test_a_segment_keeps_its_data_whatever_its_namespace_says(
    harness: Harness, api: AdminRest, namespace: str
) -> None:
    base = f"namespaces/{namespace}"
    api("POST", f"{base}/deduplication", False)
    api("POST", f"{base}/messageTTL", 1)
    api("POST", f"{base}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    quota = {"limitSize": 10, "limitTime": 10, "policy": "consumer_backlog_eviction"}
    for kind in ("destination_storage", "message_age"):
        # A quota has to stay below the retention: first without one.
        api("DELETE", f"{base}/retention")
        api("POST", f"{base}/backlogQuota?backlogQuotaType={kind}", quota)
    api(
        "POST",
        f"{base}/inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 1,
            "deleteWhileInactive": True,
        },
    )
    segment = segment_in(harness, namespace)
    harness.log.create(segment)

    path = path_of(segment.log_name)
    assert api("GET", f"{path}/messageTTL?applied=true") == 0
    assert api("GET", f"{path}/retention?applied=true")["retentionTimeInMinutes"] == -1
    for found in api("GET", f"{path}/backlogQuotaMap?applied=true").values():
        assert (found["limitSize"], found["limitTime"]) == (-1, -1)
    inactive = api("GET", f"{path}/inactiveTopicPolicies?applied=true")
    assert inactive["deleteWhileInactive"] is False
    assert api("GET", f"{path}/stats")["deduplicationStatus"] == "Enabled"
    assert list(api("GET", f"{path}/stats")["subscriptions"]) == [INTERNAL_SUBSCRIPTION]


def test_a_namespace_that_expires_subscriptions_is_refused(
    harness: Harness, api: AdminRest, namespace: str
) -> None:
    api("POST", f"namespaces/{namespace}/subscriptionExpirationTime", 5)
    with pytest.raises(SegmentLogError, match="expires subscriptions after 5 minutes"):
        harness.log.create(segment_in(harness, namespace))


def test_a_topic_that_is_no_segment_or_another_one_is_refused(
    harness: Harness, api: AdminRest
) -> None:
    foreign = harness.absent()
    api("PUT", path_of(foreign.log_name))
    try:
        with pytest.raises(SegmentNotFoundError, match="not it"):
            harness.log.writer(foreign, "w")
    finally:
        api("DELETE", path_of(foreign.log_name))
    segment = harness.segment()
    other = SegmentRef("other", segment.topic, segment.log_name)
    with pytest.raises(SegmentNotFoundError, match="not it"):
        read(harness.log, other, EARLIEST, Position(1, 1))
    with pytest.raises(SegmentLogError, match=f"belongs to segment {segment.id}"):
        harness.log.create(other)


@pytest.mark.parametrize("transport", ["client", "wire"])
def test_a_log_that_has_written_to_a_topic_notices_that_another_one_took_its_name(
    harness: Harness,
) -> None:
    assert isinstance(harness.log, PulsarSegmentLog)
    segment = harness.segment()
    write(harness.log, segment, "before", values(b"a"))
    harness.log.admin.delete_topic(segment.log_name)
    with pytest.raises(SegmentNotFoundError, match="was deleted on the broker"):
        write(harness.log, segment, "after", values(b"b"))


def test_an_existing_topic_can_become_a_segment_with_its_data(
    harness: Harness, api: AdminRest, pulsar: Broker
) -> None:
    segment = harness.absent()
    harness.segments.append(segment)
    api("PUT", path_of(segment.log_name))
    api("PUT", f"{path_of(segment.log_name)}/subscription/others", {"ledgerId": -1, "entryId": -1})
    client = pulsar_client.Client(pulsar.service_url, logger=QUIET)
    producer = client.create_producer(segment.log_name, producer_name="before")
    for number in range(3):
        producer.send(b"%d" % number, partition_key="k")
    client.close()

    harness.log.create(segment)
    write(harness.log, segment, "w", numbered(3, 5))
    found = read(harness.log, segment)
    assert [row["value"] for row in found] == [b"%d" % number for number in range(5)]
    assert [row["batch_size"] for row in found] == [0, 0, 0, 2, 2]  # no batch envelope before
    assert [row["batch_index"] for row in found] == [-1, -1, -1, 0, 1]
    size = harness.log.measure(segment, EARLIEST, harness.log.last_confirmed(segment))
    assert (size.entries, size.messages, size.exact) == (4, 5, True)


def test_ranges_go_over_ledgers(harness: Harness, api: AdminRest) -> None:
    segment, log = harness.segment(), harness.log
    for part in range(4):
        write(
            log, segment, f"w{part}", *(numbered(part * 6 + at, part * 6 + at + 3) for at in (0, 3))
        )
        api.unload(segment.log_name)
    entries = positions(log, segment)
    assert len({position.ledger for position in entries}) == 4
    assert log.last_confirmed(segment) == entries[-1]
    ends = [EARLIEST, *entries]
    for first, start in enumerate(ends):
        for last, end in enumerate(ends[first:], first):
            expected = [b"%d" % number for number in range(first * 3, last * 3)]
            assert read_values(log, segment, start, end) == expected
            assert log.measure(segment, start, end).entries == last - first
    for parts in (2, 3, 5):
        cuts = log.split(segment, EARLIEST, entries[-1], parts)
        assert cuts == sorted(cuts)
        assert len(cuts) == parts
    # Nothing was written since the last load: a sample has to tell how large the entries are.
    assert log.measure(segment, EARLIEST, entries[-1]).messages == 24
    assert log.limit(segment, EARLIEST, entries[-1], 9, None) == entries[2]
    assert log.trimmed_to(segment) == EARLIEST


def test_reloading_a_topic_that_was_never_written_is_no_loss(
    harness: Harness, api: AdminRest
) -> None:
    segment, log = harness.segment(), harness.log
    for _ in range(2):
        api.unload(segment.log_name)
        assert log.last_confirmed(segment) == EARLIEST
        assert log.trimmed_to(segment) == EARLIEST
    write(log, segment, "w", values(b"first"))
    api.unload(segment.log_name)
    assert log.trimmed_to(segment) == EARLIEST
    assert read_values(log, segment) == [b"first"]
    assert log.seal(segment) == positions(log, segment)[-1]
    api.unload(segment.log_name)
    assert log.last_confirmed(segment) == positions(log, segment)[-1]


def test_data_that_somebody_deleted_is_reported_and_never_skipped(
    harness: Harness, api: AdminRest, pulsar: Broker
) -> None:
    segment, log = harness.segment(), harness.log
    path = path_of(segment.log_name)
    write(log, segment, "a", numbered(0, 3))
    api.unload(segment.log_name)
    write(log, segment, "b", numbered(3, 6))
    start, middle = EARLIEST, positions(log, segment)[0]
    end = log.last_confirmed(segment)
    # An operator's mistakes: no retention, the subscription skipped, a trim. Deduplication has a
    # cursor that holds the data too, until its next snapshot.
    api("POST", f"{path}/deduplicationEnabled", False)
    api("POST", f"{path}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    api("POST", f"{path}/subscription/{INTERNAL_SUBSCRIPTION}/skip_all")
    await_gone(api, path, middle.ledger)

    assert EARLIEST < log.trimmed_to(segment) < end
    with pytest.raises(DataLossError, match="deleted before it was read"):
        read(log, segment, start, end)
    fresh = log_of(pulsar)
    with pytest.raises(DataLossError):
        read(fresh, segment, start, end)
    assert read_values(fresh, segment, fresh.trimmed_to(segment), end) == [b"3", b"4", b"5"]
    fresh.close()


def await_gone(api: AdminRest, path: str, ledger: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        api("POST", f"{path}/trim")
        ledgers = [found["ledgerId"] for found in api("GET", f"{path}/internalStats")["ledgers"]]
        if ledger not in ledgers:
            return
        assert time.monotonic() < deadline, ledgers
        time.sleep(0.2)


def test_readers_leave_no_subscription_behind_even_when_killed(
    harness: Harness, api: AdminRest, pulsar: Broker
) -> None:
    segment, log = harness.segment(), harness.log
    write(log, segment, "w", numbered(0, 50_000), numbered(50_000, 100_000))
    assert len(read_values(log, segment)) == 100_000
    script = f"""
import sys
from integration.pulsar.test_log import *
log = PulsarSegmentLog(PulsarConfig({pulsar.service_url!r}, {pulsar.admin_url!r}))
segment = SegmentRef({segment.id!r}, {segment.topic!r}, {segment.log_name!r})
found = log.read(segment, EARLIEST, log.last_confirmed(segment), visible=everything,
                 columns=frozenset(["value"]), max_rows=10)
next(found)
print("reading", flush=True)
sys.stdin.read()
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    ) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == b"reading\n"
        subscriptions = api("GET", f"{path_of(segment.log_name)}/stats")["subscriptions"]
        assert len(subscriptions) == 2  # one of them lives with the connection
        reading.kill()
    deadline = time.monotonic() + 60
    while len(subscriptions) > 1:
        assert time.monotonic() < deadline, subscriptions
        subscriptions = api("GET", f"{path_of(segment.log_name)}/stats")["subscriptions"]
    assert list(subscriptions) == [INTERNAL_SUBSCRIPTION]
    stats = api("GET", f"{path_of(segment.log_name)}/internalStats")
    internal = stats["cursors"][INTERNAL_SUBSCRIPTION]
    assert internal["markDeletePosition"].endswith(":-1")  # nobody moved it


@pytest.mark.parametrize("writes, reads", [("client", "wire"), ("wire", "client")])
def test_what_one_transport_writes_the_other_reads(
    harness: Harness, pulsar: Broker, writes: str, reads: str
) -> None:
    segment = harness.segment()
    log, other = log_of(pulsar, writes), log_of(pulsar, reads)
    keys: list[Row] = [(b"v", b"", None, {}), (b"v", b"\xff\xfe", None, {"p": "q"})]
    written = list(EVERY_KIND_OF_ROW)
    write(log, segment, "first", table(EVERY_KIND_OF_ROW))
    if writes == "wire":
        write(log, segment, "first", table(keys))
        # pulsar-client tells no empty key from none, and hands a binary one over as the base64
        # text that it travels as.
        written += [(b"v", None, None, {}), (b"v", b"//4=", None, {"p": "q"})]
    write(log, segment, "second", numbered(0, 3))
    written += [(b"%d" % number, None, None, {}) for number in range(3)]
    assert as_rows(read(other, segment)) == written
    # Where each row stands and who wrote it is the same to both. (pulsar-client shows no sequence
    # ids: a source with that column refuses it.)
    theirs, ours = read(other, segment), read(log, segment)
    for column in EVERY_COLUMN - {"key", "sequence_id"}:
        assert [row[column] for row in theirs] == [row[column] for row in ours], column
    for writer, count in (("first", len(written) - 3), ("second", 3)):

        def is_it(found: str, _at: Position, writer: str = writer) -> bool:
            return found == writer

        assert len(read(other, segment, visible=is_it)) == count
    for one in (log, other):
        one.close()


@pytest.mark.parametrize("transport", ["client", "wire"])
@pytest.mark.parametrize("compression", ["lz4", "ZLIB", "ZSTD", "SNAPPY"])
def test_rows_can_be_compressed(
    harness: Harness, pulsar: Broker, compression: str, transport: str
) -> None:
    segment = harness.segment()
    log = log_of(pulsar, transport, producer={"compressiontype": compression})
    other = log_of(pulsar, "client" if transport == "wire" else "wire")
    batch = values(*(b"the same again and again %d" % (number % 3) for number in range(30_000)))
    receipt = write(log, segment, "w", batch)
    stored = log.admin.managed_ledger(segment.log_name).ledgers[0].bytes
    assert receipt.messages == 30_000
    assert stored < receipt.bytes / 2
    for one in (log, other):
        assert read_values(one, segment) == batch.column(0).to_pylist()
        one.close()


def test_rows_can_be_encrypted_and_only_the_key_reads_them(
    harness: Harness, pulsar: Broker, tmp_path: Path
) -> None:
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no 'openssl' on the PATH to make a key with")
    subprocess.run([openssl, "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(
        [openssl, "rsa", "-in", private, "-pubout", "-out", public],
        check=True,
        capture_output=True,
    )
    segment = harness.segment()
    log = log_of(
        pulsar,
        producer={"encryptionKey": "k1", "cryptoPublicKeyPath": str(public)},
        reader={"cryptoPublicKeyPath": str(public), "cryptoPrivateKeyPath": str(private)},
    )
    batch = numbered(0, 1000)
    write(log, segment, "w", batch)
    assert read_values(log, segment) == batch.column(0).to_pylist()
    log.close()


def test_a_small_queue_of_the_client_still_takes_large_batches(
    harness: Harness, pulsar: Broker
) -> None:
    segment = harness.segment()
    log = log_of(
        pulsar,
        "client",
        producer={"maxPendingMessages": "10", "sendTimeoutMs": "20000"},
        reader={"receiverQueueSize": "1"},
    )
    batch = numbered(0, 1000)
    receipt = write(log, segment, "w", batch)
    assert receipt.entries == 200
    assert read_values(log, segment) == batch.column(0).to_pylist()
    log.close()


def test_entries_are_cut_by_bytes_and_rows_as_asked(harness: Harness, pulsar: Broker) -> None:
    segment = harness.segment()
    log = log_of(pulsar, producer={"batchingMaxMessages": "7", "batchingMaxBytes": "100000"})
    receipt = write(log, segment, "w", numbered(0, 70))
    assert receipt.entries == 10
    receipt = write(log, segment, "v", values(*(b"x" * 60_000 for _ in range(4))))
    assert receipt.entries == 4
    log.close()


def test_an_unreachable_pulsar_is_reported_with_what_to_check(harness: Harness) -> None:
    (port,) = free_ports(1)
    nowhere = f"//127.0.0.1:{port}"
    segment = harness.segment()
    log = PulsarSegmentLog(PulsarConfig(f"pulsar:{nowhere}", f"http:{nowhere}"))
    with pytest.raises(SegmentLogUnavailableError, match=r"check admin\.url"):
        log.writer(segment, "w")
    log.close()


def test_both_transports_tell_the_same_partitions_and_create_none(
    harness: Harness, pulsar: Broker, api: AdminRest, namespace: str
) -> None:
    parted = f"persistent://{namespace}/parted"
    api("PUT", f"{parted.replace('://', '/')}/partitions", 3)
    plain, missing = harness.segment().log_name, harness.absent().log_name
    nowhere = f"persistent://public/{uuid.uuid4().hex}/t"
    expected = {parted: 3, f"{parted}-partition-1": 0, plain: 0, missing: None, nowhere: None}
    for transport in ("client", "wire"):
        log = log_of(pulsar, transport)
        # The second time it would be there if the first one had created it.
        for _ in range(2):
            told = {
                topic: log._transport.partitions(topic, log.admin.partitions) for topic in expected
            }
            assert told == expected, transport
        log.close()


def client_of(log: Any) -> Any:
    return log._transport._client


def test_one_client_serves_every_log_of_a_configuration(pulsar: Broker) -> None:
    first, second = log_of(pulsar), log_of(pulsar)
    other = log_of(pulsar, client={"operationTimeoutMs": "5000"})
    assert client_of(first) is client_of(second)
    assert client_of(first) is not client_of(other)
    for log in (first, second, other):
        log.close()
        log.close()
    again = log_of(pulsar)
    assert client_of(again) is client_of(first)
    again.close()


def test_a_log_is_not_used_across_a_fork(harness: Harness) -> None:
    segment = harness.segment()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = b"worked"
        try:
            harness.log.writer(segment, "w")
        except SegmentLogError as refused:
            outcome = str(refused).encode()
        os.write(write_end, outcome)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as told:
        assert b"fork" in told.read()
    os.waitpid(child, 0)
    write(harness.log, segment, "w", values(b"the parent goes on"))


def test_a_topic_says_before_the_first_transactional_row_that_there_may_be_some(
    harness: Harness, pulsar: Broker, api: AdminRest
) -> None:
    segment = harness.segment()
    properties = f"{path_of(segment.log_name)}/properties"
    harness.log.writer(segment, "outside").close()
    assert CONTAINS_TXN not in api("GET", properties)
    before = api("GET", properties)
    writer = harness.log.writer(segment, "ptxn-0-1-0-abcd")
    assert api("GET", properties) == {**before, CONTAINS_TXN: "true"}
    assert harness.log.last_confirmed(segment) == EARLIEST, "nothing was written yet"
    writer.close()
    another = log_of(pulsar)
    another.writer(segment, "ptxn-0-2-0-abcd").close()
    another.close()
    assert api("GET", properties) == {**before, CONTAINS_TXN: "true"}
