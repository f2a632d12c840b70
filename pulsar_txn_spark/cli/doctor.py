"""``pulsar-txn doctor``: checks of versions, servers, transactions and topics, with remedies."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import typer

import pulsar_txn_spark
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.log import GATING_BUFFER
from pulsar_txn_spark.backends.pulsar.transport import choose_and_say
from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.cli.commands import AsJson, OptionPairs, options_of
from pulsar_txn_spark.cli.format_lookup import look_up
from pulsar_txn_spark.cli.output import show
from pulsar_txn_spark.environment import require_java, require_python_and_pyspark
from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    SegmentLogError,
    SegmentNotFoundError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topology import GatedBy, TopicState, Topology
from pulsar_txn_spark.store.protocol import SegmentStore, TransactionStore
from pulsar_txn_spark.store.records import NOWHERE, StoreIdentity, TcState, TxnId
from pulsar_txn_spark.store.redis.connection import connect, verify
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.health import (
    STUCK_AFTER_MS,
    retained_by_pointers,
    stuck_participants,
    tc_states,
)

LEAST_PULSAR = (4, 0)
OLD_MS = 600_000
"""A transaction that is open for longer gets a warning: micro-batches take seconds."""

BACKLOG = 1_000  # decided headers of a coordinator: two sweeps delete as many
DROPPED_WRITERS = 1_000  # of one segment: 135 KB, which each reading of its gate transfers
_SEGMENTS_CHECKED = 500  # whose deduplication is checked: one admin call each
_MODULES_THAT_WARN = ("store.redis.connection", "backends.pulsar.subscription_expiry")
_EXPIRED_MS = 120_000  # longer than two intervals of the sweeps


class Level(StrEnum):
    """Severity of a finding. Anything but OK makes the command fail."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Parameters
    ----------
    check : str
    level : Level
    found : str
    remedy : str
        Empty if nothing is wrong.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""


def doctor(option: OptionPairs = [], as_json: AsJson = False) -> None:
    """Check versions, Redis' durability, Pulsar's deduplication, and what is stuck or old.

    Changes nothing. The exit code is 1 if anything was found, however small.
    """
    # The findings repeat what these checks would log.
    logs = [logging.getLogger(f"pulsar_txn_spark.{module}") for module in _MODULES_THAT_WARN]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        findings = examine(options_of(option))
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
    rows = [asdict(finding) for finding in findings]
    show(rows, as_json=as_json, title="doctor", columns=["check", "level", "found", "remedy"])
    if any(finding.level is not Level.OK for finding in findings):
        raise typer.Exit(1)


def examine(user_options: Mapping[str, str]) -> list[Finding]:
    """Make every check that the options allow.

    Nothing is changed, except that a new store gets its identity.

    Parameters
    ----------
    user_options : mapping of str to str
        How to reach the store and Pulsar, as for ``format("pulsar_txn")``.

    Raises
    ------
    OptionError
        If an option is wrong.
    """
    # Connect despite what these options refuse or hide: the findings name it.
    permissive = {**user_options, "store.acceptDataLoss": "true", "store.assumeDurable": "false"}
    for key in user_options:
        if key.lower() in ("store.acceptdataloss", "store.assumedurable"):
            permissive.pop(key)
            permissive.update({"store.acceptDataLoss": "true", "store.assumeDurable": "false"})
    options = Options(permissive, Use.CONNECT)
    findings = [*_versions()]
    topologies: list[Topology] = []
    try:
        findings += _durability(options)
        config = options.store
        store = RedisStore(connect(config), config.coordinators)
        findings.append(_schema(store.identity))
        topologies = _topologies(store)
        findings += _transactions(store)
        findings.append(_half_made(topologies))
        topologies = [topology for topology in topologies if topology.state is TopicState.LIVE]
        findings += _gates(store.segments, [s.ref for t in topologies for s in t.readable])
        findings.append(_changes(topologies))
    except OptionError:
        raise
    except PulsarTxnError as error:
        findings.append(
            Finding("metadata store", Level.ERROR, str(error), "see the message; then run again")
        )
    # Nothing is appended to sealed segments, so their deduplication does not matter.
    gated = [t for t in topologies if t.gate is GatedBy.BROKER]
    findings += _pulsar(
        options,
        [s.ref for t in topologies for s in t.active],
        [s.ref for t in gated for s in t.active],
        [s.ref for t in topologies for s in t.readable],
    )
    return findings


# -- versions ------------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    yield Finding("package", Level.OK, f"pulsar_txn_spark {pulsar_txn_spark.__version__}")
    yield _required("Python and PySpark", require_python_and_pyspark, _pyspark())
    yield _required("Java", require_java, "17 or newer")
    yield _format()


def _required(check: str, require: Callable[[], None], well: str) -> Finding:
    try:
        require()
    except PulsarTxnError as error:
        return Finding(check, Level.ERROR, str(error), "upgrade it, as the message says")
    return Finding(check, Level.OK, well)


def _format() -> Finding:
    """Check that Spark finds the format, in the interpreter that it starts."""
    check, lookup = "format('pulsar_txn')", look_up()
    if lookup.visible:
        return Finding(check, Level.OK, f"Spark finds it with {lookup.python} ({lookup.chosen_by})")
    return Finding(
        check,
        Level.ERROR,
        f"Spark does not find it with {lookup.python} ({lookup.chosen_by}): {lookup.problem}",
        f"set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to an interpreter that has it (this one is "
        f"{sys.executable}), or install it there: {lookup.python} -m pip install pulsar-txn-spark",
    )


def _pyspark() -> str:
    for name in ("pyspark", "pyspark-client"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "PySpark comes with Spark's own distribution"


# -- the metadata store --------------------------------------------------------------------------


def _durability(options: Options) -> Iterator[Finding]:
    config = options.store
    facts = verify(connect(config), config)
    for problem in facts.problems:
        level = Level.ERROR if problem.loses_data else Level.WARNING
        yield Finding(problem.check, level, problem.what, problem.remedy)
    for node in facts.nodes:
        yield Finding(
            "metadata store", Level.OK, f"{node.product} {node.version} at {node.address}"
        )
    if not any(problem.loses_data for problem in facts.problems):
        yield Finding("Redis durability", Level.OK, "keeps what it has acknowledged")


def _schema(identity: StoreIdentity) -> Finding:
    shown = f"store {identity.uuid}, {identity.coordinators} transaction coordinators"
    return Finding("store identity", Level.OK, shown)


def _topologies(store: RedisStore) -> list[Topology]:
    read = map(store.topics.read, store.meta.list_topics())
    return [Topology.parse(*stored) for stored in read if stored is not None]


def _half_made(topologies: list[Topology]) -> Finding:
    """Warn of creations and deletions of topics that are in progress; they take seconds."""
    half = {
        state: [f"{t.topic}" for t in topologies if t.state is state]
        for state in (TopicState.CREATING, TopicState.DELETING)
    }
    if not any(half.values()):
        return Finding("creations and deletions", Level.OK, "none is half done")
    unfinished = [f"{', '.join(names)} ({state})" for state, names in half.items() if names]
    return Finding(
        "creations and deletions",
        Level.WARNING,
        f"not finished: {'; '.join(unfinished)}. It is under way, or whoever began it is dead",
        "pulsar-txn sweep finishes deletions. Create or delete again what is half created",
    )


def _changes(topologies: list[Topology]) -> Finding:
    """Warn of splits and merges that are in progress; they take seconds."""
    names = [f"{topology.topic}" for topology in topologies if topology.unfinished]
    if not names:
        return Finding("changes of segments", Level.OK, "none is half done")
    return Finding(
        "changes of segments",
        Level.WARNING,
        f"a split, a merge or a seal is not finished in {', '.join(names)}: it is under way, or "
        "whoever began it is dead",
        "pulsar-txn sweep (it finishes it, or its error says why it cannot)",
    )


def _transactions(store: RedisStore) -> Iterator[Finding]:
    states = tc_states(store)
    yield from _stuck(store, states)
    yield _oldest_open(states)
    yield from _expired(store.transactions, states)
    backlog = max(state.decided for state in states)
    if backlog > BACKLOG:
        yield Finding(
            "collection of headers",
            Level.WARNING,
            f"{backlog} decided headers of one coordinator are not collected",
            "run pulsar-txn sweep --every 30. It names what retains them ('stuck'): an "
            "old open transaction retains all younger ones of its coordinator",
        )
    else:
        yield Finding("collection of headers", Level.OK, f"at most {backlog} wait")
    yield _retained_headers(store)


def _stuck(store: RedisStore, states: list[TcState]) -> Iterator[Finding]:
    stuck = stuck_participants(store, states)
    for participant in stuck:
        yield Finding(
            "stuck participants",
            Level.ERROR,
            f"segment {participant.segment} has not materialized the decision of transaction "
            f"{participant.txn}, made {_duration(participant.decided_ms_ago)} ago: its header "
            "waits for it, and readers may",
            "pulsar-txn sweep (it materializes the decision, or its error says why it cannot)",
        )
    if not stuck:
        seconds = STUCK_AFTER_MS // 1000
        well = f"every decision older than {seconds} s is materialized everywhere"
        yield Finding("stuck participants", Level.OK, well)


def _retained_headers(store: RedisStore) -> Finding:
    """List headers that a batch pointer retains. They block nobody, so this is no warning."""
    retained = retained_by_pointers(store)
    if not retained:
        return Finding("headers held by pointers", Level.OK, "none")
    named = ", ".join(f"{header.txn} of sink {header.sink}" for header in retained)
    return Finding(
        "headers held by pointers",
        Level.OK,
        f"{named}: the attempt died before its pointer named the transaction, which is aborted. "
        "Nobody waits for it; its header goes after the next batch of its query, and stays if "
        "that never comes back",
    )


def _oldest_open(states: list[TcState]) -> Finding:
    opened = [(s.oldest_open[1], s.oldest_open[0], s.now_ms) for s in states if s.oldest_open]
    if not opened:
        return Finding("oldest open transaction", Level.OK, "none is open")
    at, txn, now_ms = min(opened)
    shown = f"transaction {txn} is open for {_duration(now_ms - at)}"
    if now_ms - at <= OLD_MS:
        return Finding("oldest open transaction", Level.OK, shown)
    return Finding(
        "oldest open transaction",
        Level.WARNING,
        f"{shown}: readers of its segments stand in front of it",
        f"pulsar-txn txn show '{txn}' names its sink and query; if its driver is gone: "
        f"pulsar-txn txn abort '{txn}'",
    )


def _expired(transactions: TransactionStore, states: list[TcState]) -> Iterator[Finding]:
    late: list[TxnId] = []
    for tc, state in enumerate(states):
        due = transactions.list_open(tc, deadline_ms=state.now_ms - _EXPIRED_MS, limit=10)
        late += [txn for txn, _ in due]
    if late:
        yield Finding(
            "sweeps",
            Level.WARNING,
            f"{', '.join(map(str, late))}: the lease has been over for more than "
            f"{_duration(_EXPIRED_MS)}, and nobody has aborted it: no sweep runs",
            "pulsar-txn sweep --every 30, beside the queries",
        )
    else:
        yield Finding("sweeps", Level.OK, "no transaction is open long after its lease")


def _gates(store: SegmentStore, segments: list[SegmentRef]) -> Iterator[Finding]:
    ids = [ref.id for ref in segments]
    gates = store.gates(ids, [NOWHERE] * len(ids)) if ids else []
    well = True
    for ref, gate in zip(segments, gates, strict=True):
        if gate.all_dropped <= DROPPED_WRITERS:
            continue
        well = False
        yield Finding(
            "dropped writers",
            Level.WARNING,
            f"segment {ref.id} has {gate.all_dropped} dropped writers, whose entries lie in it",
            "a job fails over and over: mend it. They go when the data they lie in is deleted",
        )
    if well:
        yield Finding("dropped writers", Level.OK, f"few in each of {len(segments)} segments")


# -- Pulsar --------------------------------------------------------------------------------------


def _pulsar(
    options: Options,
    segments: list[SegmentRef],
    gated: list[SegmentRef],
    readable: list[SegmentRef],
) -> Iterator[Finding]:
    config = options.pulsar
    if config is None:
        yield Finding("Pulsar", Level.OK, "not used: the segments live in the embedded log")
        return
    chosen, why = choose_and_say(config)
    yield Finding("transport", Level.OK, f"{chosen}: {why}")
    admin = PulsarAdmin(config)
    try:
        yield _pulsar_version(admin.broker_version())
        yield from _deduplication(admin, segments)
        yield from _gating(admin, gated)
        yield from _expiry(admin, readable)
    except SegmentLogError as error:
        remedy = "check service.url, admin.url and the credentials; then run again"
        yield Finding("Pulsar", Level.ERROR, str(error), remedy)
    finally:
        admin.close()


def _pulsar_version(release: str) -> Finding:
    numbers = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if numbers >= LEAST_PULSAR:
        return Finding("Pulsar", Level.OK, f"version {release}")
    needed = ".".join(map(str, LEAST_PULSAR))
    return Finding("Pulsar", Level.ERROR, f"version {release}", f"upgrade to {needed} or newer")


def _deduplication(admin: PulsarAdmin, segments: list[SegmentRef]) -> Iterator[Finding]:
    checked = [ref for ref in segments if ref.log_name.startswith("persistent://")][
        :_SEGMENTS_CHECKED
    ]
    enabled = 0
    for ref in checked:
        try:
            status = admin.deduplication_status(ref.log_name)
        except SegmentNotFoundError:
            yield Finding(
                "Pulsar deduplication",
                Level.ERROR,
                f"{ref.log_name} is not there: a segment's topic was deleted, or the options lead "
                "to another cluster",
                "check service.url and admin.url; a segment that is gone is lost: restore it, or "
                "delete the topic (pulsar-txn topic delete)",
            )
            continue
        if status == "Enabled":
            enabled += 1
            continue
        yield Finding(
            "Pulsar deduplication",
            Level.ERROR,
            f"of {ref.log_name} is {status!r}, needed is 'Enabled': a transport that reconnects by "
            "itself may then write a row twice",
            f"pulsar-admin topicPolicies set-deduplication-status -e {ref.log_name}",
        )
    if enabled == len(checked):
        yield Finding("Pulsar deduplication", Level.OK, f"on for all of {enabled} segments")
    if len(checked) < len(segments):
        left = len(segments) - len(checked)
        yield Finding("Pulsar deduplication", Level.OK, f"{left} further segments were not asked")


def _gating(admin: PulsarAdmin, gated: list[SegmentRef]) -> Iterator[Finding]:
    """Check that the brokers of gated segments have the plug-in, and can use it."""
    well = 0
    for ref in gated[:_SEGMENTS_CHECKED]:
        try:
            serving = admin.settled_transactions_of(ref.log_name)
        except SegmentNotFoundError:
            continue  # the check of deduplication says so
        except SegmentLogError as error:
            yield Finding(
                "gating brokers",
                Level.ERROR,
                f"the broker of {ref.log_name} shows nothing of a gated segment: {error}",
                "look into the broker's log; it has to reach the store at pulsarTxnSparkStoreUrl, "
                "which has to be this one",
            )
            return  # others may be asked as long as this one
        if serving is not None and serving.buffer == GATING_BUFFER:
            well += 1
            continue
        yield Finding(
            "gating brokers",
            Level.ERROR,
            f"the broker of {ref.log_name} has not loaded the plug-in, and the brokers are to gate "
            f"segment {ref.id}: nobody can write there",
            "put the jar into lib/ and the settings into broker.conf of every broker "
            "(docs/broker.md), and restart it",
        )
    if well == len(gated):
        shown = f"the plug-in gates all of {well} segments" if gated else "no topic is gated"
        yield Finding("gating brokers", Level.OK, shown)
    if len(gated) > _SEGMENTS_CHECKED:
        left = len(gated) - _SEGMENTS_CHECKED
        yield Finding("gating brokers", Level.OK, f"{left} further segments were not asked")


def _expiry(admin: PulsarAdmin, segments: list[SegmentRef]) -> Iterator[Finding]:
    """Check that the subscriptions that keep unread data never expire."""
    check, well = "subscription expiration", True
    known = {
        admin.subscription_expiry(ref.log_name)
        for ref in segments
        if ref.log_name.startswith("persistent://")
    }
    for expiry in sorted(known, key=lambda expiry: expiry.namespace):
        if expiry.minutes == 0:
            continue
        well = False
        level = Level.ERROR if expiry.minutes else Level.WARNING
        yield Finding(check, level, str(expiry), expiry.remedy)
    if well:
        yield Finding(check, Level.OK, "the internal subscriptions of segments never expire")


def _duration(ms: int) -> str:
    seconds = ms // 1000
    if seconds < 120:  # noqa: PLR2004 - two minutes are still told in seconds
        return f"{seconds} s"
    return f"{seconds // 60} min"
