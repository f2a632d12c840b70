"""Metrics for Prometheus: read from the metadata store when they are asked for.

There is nothing to see in one process alone (see :mod:`pulsar_txn_spark.metrics`). So an endpoint
in any process that reaches the store shows the same. It may be in the user's driver, by
:func:`serve_metrics` or the option ``metrics.port`` of a source or a foreachBatch sink. It may also
be beside the sweeps (``pulsar-txn sweep --every 30 --metrics-port 9464``).

A scrape costs one request for each coordinator, and one that flushes this process's counts. It
costs one for the catalogue of topics, one for each topic, and one for the gates of all segments (on
a cluster one each). It costs more only where readers are blocked or something is wrong. Nothing
scans keys. Answers are kept for a few seconds, so that several scrapers cost as much as one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    UntypedMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from pulsar_txn_spark import metrics
from pulsar_txn_spark.announcement import announce
from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import OptionError, PulsarTxnError, SegmentLogError
from pulsar_txn_spark.metrics import METRICS, VALUES, Kind, Label, Metric
from pulsar_txn_spark.options import Options, Use, default_of
from pulsar_txn_spark.process_lock import ProcessLock
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.records import NOWHERE, Gate, TcState
from pulsar_txn_spark.txn.health import stuck_participants, tc_states

_LOG = logging.getLogger(__name__)

DEFAULT_HOST: str = default_of("metrics.host")
SHOWN_SEGMENTS = 100
"""Segments that have samples of their own: bounds what Prometheus has to keep."""

_EXAMINED_TOPICS = 500  # bounds the requests of a scrape
_EXAMINED_SEGMENTS = 2000  # bounds the one request for their gates
_KEPT_S = 2.0  # shorter than any scrape interval; longer than two scrapers are apart

_Labels = tuple[str, ...]
_Samples = dict[_Labels, float]


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Cumulated buckets and the sum of one set of labels."""

    buckets: list[tuple[str, float]]
    sum: float


class StoreMetrics:
    """Makes Prometheus' metric families of one store.

    Parameters
    ----------
    components : Components
    """

    def __init__(self, components: Components) -> None:
        self._components = components
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._families: list[Family] = []

    def families(self) -> list[Family]:
        """Return the families as they are now, or were a moment ago."""
        with self._lock:
            if time.monotonic() - self._read_at > _KEPT_S:
                self._families = self._read()
                self._read_at = time.monotonic()
            return list(self._families)

    def _read(self) -> list[Family]:
        cluster = self._components.store.identity.uuid
        try:
            values, histograms = self._values()
        except PulsarTxnError as error:
            _LOG.warning("this scrape has no metrics but that the store is down: %s", error)
            down = _family(metrics.STORE_UP)
            _add(down, metrics.STORE_UP, cluster, (), 0)
            return [down]
        families = []
        for metric in METRICS:
            family = _family(metric)
            if metric.kind is Kind.HISTOGRAM:
                assert isinstance(family, HistogramMetricFamily)
                for labels, histogram in histograms[metric.name].items():
                    family.add_metric([cluster, *labels], histogram.buckets, histogram.sum)
            else:
                for labels, value in values[metric.name].items():
                    _add(family, metric, cluster, labels, value)
            families.append(family)
        return families

    def _values(self) -> tuple[Mapping[str, _Samples], Mapping[str, dict[_Labels, _Histogram]]]:
        store = self._components.store
        store.flush_counters()
        states = tc_states(store)
        values: dict[str, _Samples] = defaultdict(dict)
        values[metrics.STORE_UP.name][()] = 1
        for tc, state in enumerate(states):
            labels = (str(tc),)
            values[metrics.OPEN.name][labels] = state.open
            values[metrics.DECIDED.name][labels] = state.decided
            opened = state.oldest_open[1] if state.oldest_open else state.now_ms
            values[metrics.OLDEST_OPEN.name][labels] = max(0, state.now_ms - opened) / 1000
            unmaterialized = min((at for _, at in state.unmaterialized), default=state.now_ms)
            values[metrics.OLDEST_UNMATERIALIZED.name][labels] = (
                max(0, state.now_ms - unmaterialized) / 1000
            )
        values[metrics.STUCK.name][()] = len(stuck_participants(store, states))
        counts = _by_metric(states)
        histograms: dict[str, dict[_Labels, _Histogram]] = {}
        for metric in METRICS:
            if metric.kind is Kind.HISTOGRAM:
                histograms[metric.name] = _histograms(metric, counts[metric.name], len(states))
            elif metric.by_script or metric.kind is not Kind.GAUGE:
                values[metric.name] = _counters(metric, counts[metric.name], len(states))
        self._segment_values(values)
        return values, histograms

    # -- segments ----------------------------------------------------------------------------

    def _segment_values(self, values: dict[str, _Samples]) -> None:
        refs = self._segments()
        examined = refs[:_EXAMINED_SEGMENTS]
        ids = [ref.id for ref in examined]
        gates = self._components.store.segments.gates(ids, [NOWHERE] * len(ids)) if ids else []
        pairs = list(zip(examined, gates, strict=True))
        written = {ref.topic for ref, gate in pairs if gate.contains_txn}
        values[metrics.TXN_TOPICS.name][()] = len(written)
        # Those that block readers first: what is left out is where nothing is wrong.
        ranked = sorted(
            pairs,
            key=lambda pair: (not pair[1].pins, not pair[1].all_dropped, pair[0].id),
        )
        for ref, gate in ranked[:SHOWN_SEGMENTS]:
            labels = (ref.topic, ref.id)
            values[metrics.DROPPED.name][labels] = gate.all_dropped
            try:
                values[metrics.LAG.name][labels] = self._lag(ref, gate)
            except SegmentLogError as error:
                _LOG.warning("the lag of a segment is not known: %s", error)
        values[metrics.LEFT_OUT.name][()] = max(0, len(refs) - SHOWN_SEGMENTS)

    def _segments(self) -> list[SegmentRef]:
        refs: list[SegmentRef] = []
        for name in self._components.store.meta.list_topics()[:_EXAMINED_TOPICS]:
            try:
                topology = self._components.topics.find(TopicName.parse(name))
            except OptionError:
                continue  # it lives on another backend than these options reach
            if topology is not None:
                refs += [segment.ref for segment in topology.readable]
        return refs

    def _lag(self, ref: SegmentRef, gate: Gate) -> float:
        if not gate.pins:
            return 0  # readers may read all that there is: no need to ask the log
        last = self._components.log.last_confirmed(ref)
        bound = gate.pins[0].bound
        return self._components.log.measure(ref, bound, last).messages if bound < last else 0


# -- from counts to samples ----------------------------------------------------------------------


def _by_metric(states: Sequence[TcState]) -> Mapping[str, dict[_Labels, int]]:
    """Sort what all TCs have counted by metric and labels."""
    by_metric: dict[str, dict[_Labels, int]] = defaultdict(lambda: defaultdict(int))
    for tc, state in enumerate(states):
        for field, amount in state.counts.items():
            name, *labels = field.split("|")
            metric = metrics.BY_NAME.get(name)
            if metric is None:
                continue  # counted by another version of this package
            own = (str(tc),) if metric.by_script else ()
            labelled = (*own, *labels)
            by_metric[name][labelled] += amount
    return by_metric


def _label_sets(metric: Metric, coordinators: int) -> Iterator[_Labels]:
    """Return the label values that are known beforehand, so that they are there from the start."""
    tcs = tuple(str(tc) for tc in range(coordinators))
    known = [tcs if label is Label.COORDINATOR else VALUES[label] for label in metric.labels]
    yield from product(*known)


def _counters(metric: Metric, counts: Mapping[_Labels, int], coordinators: int) -> _Samples:
    samples: _Samples = dict.fromkeys(_label_sets(metric, coordinators), 0)
    width = len(metric.labels)
    samples.update({labels: amount for labels, amount in counts.items() if len(labels) == width})
    return samples


def _histograms(
    metric: Metric, counts: Mapping[_Labels, int], coordinators: int
) -> dict[_Labels, _Histogram]:
    histograms = {}
    for labels in _label_sets(metric, coordinators):
        cumulated, buckets = 0, []
        for bound in metric.buckets:
            for name in {metrics.bound_name(bound), metrics.rounded_bound_name(bound)}:
                cumulated += counts.get((*labels, name), 0)
            buckets.append((metrics.bound_name(bound), float(cumulated)))
        cumulated += counts.get((*labels, metrics.INFINITY), 0)
        buckets.append((metrics.INFINITY, float(cumulated)))
        histograms[labels] = _Histogram(
            buckets, counts.get((*labels, metrics.SUM), 0) / metric.scale
        )
    return histograms


_FAMILIES = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.NAMED_COUNTER: UntypedMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _family(metric: Metric) -> Family:
    labels = [Label.CLUSTER.value, *(label.value for label in metric.labels)]
    family: Family = _FAMILIES[metric.kind](metric.name, metric.meaning, labels=labels)
    return family


def _add(family: Family, metric: Metric, cluster: str, labels: _Labels, value: float) -> None:
    names = [Label.CLUSTER.value, *(label.value for label in metric.labels)]
    family.add_sample(metric.name, dict(zip(names, (cluster, *labels), strict=True)), value)


# -- the endpoint --------------------------------------------------------------------------------


class _Stores(Collector):
    """The metrics of every store that a process shows: a family has samples of each cluster."""

    def __init__(self) -> None:
        self.stores: dict[str, StoreMetrics] = {}

    def describe(self) -> Iterable[Family]:
        """Return the families without samples: registering asks nothing of a store."""
        return [_family(metric) for metric in METRICS]

    def collect(self) -> Iterable[Family]:
        """Return the families with their samples."""
        merged: dict[str, Family] = {}
        for store in list(self.stores.values()):
            for family in store.families():
                known = merged.setdefault(
                    family.name, Family(family.name, family.documentation, family.type)
                )
                known.samples.extend(family.samples)
        return merged.values()


class MetricsServer(Closing):
    """The HTTP endpoint of this process.

    Parameters
    ----------
    host : str
    port : int
        0 = any that is free; see :attr:`url`.

    Raises
    ------
    OptionError
        If the port cannot be had.
    """

    def __init__(self, host: str, port: int) -> None:
        self.registry = CollectorRegistry()
        self._stores = _Stores()
        self.registry.register(self._stores)
        try:
            self._server: WSGIServer
            self._server, self._thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise OptionError(
                f"metrics cannot be served at {host}:{port} ({error.strerror or error}): another "
                "process has the port, or the address is not this machine's. Choose another port "
                "(metrics.port or --metrics-port, 0 = any that is free) or address (metrics.host "
                "or --metrics-host)"
            ) from error
        self.host, self.port = host, self._server.server_port

    @property
    def url(self) -> str:
        """Where Prometheus finds it."""
        return f"http://{self.host}:{self.port}/metrics"

    @property
    def is_closed(self) -> bool:
        """Whether it serves no more."""
        return self._closed

    def show(self, components: Components) -> None:
        """Show the metrics of a store. Idempotent."""
        self._stores.stores.setdefault(components.store.identity.uuid, StoreMetrics(components))

    def _close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_servers: dict[int, MetricsServer] = {}
_servers_lock = ProcessLock()


def serve_metrics(
    options: Mapping[str, str], port: int = 0, host: str = DEFAULT_HOST
) -> MetricsServer:
    """Serve the metrics of a store over HTTP from this process.

    There is one endpoint in a process: a second call adds the other store to it, and does not
    open another port.

    Parameters
    ----------
    options : mapping of str to str
        How to reach the store and Pulsar, as for ``format("pulsar_txn")``.
    port : int
        0 = any that is free.
    host : str
        Loopback by default: there is no authentication.

    Returns
    -------
    MetricsServer
        Its `url` says where; `close` stops it.

    Raises
    ------
    OptionError
        If the port cannot be had.
    StoreUnavailableError, StoreUnsafeError, SegmentLogUnavailableError
    """
    return serve(open_components(Options(options, Use.CONNECT)), port, host)


def serve(components: Components, port: int, host: str = DEFAULT_HOST) -> MetricsServer:
    """Like :func:`serve_metrics`, for a store that is open."""
    with _servers_lock:
        server = _servers.get(os.getpid())
        if server is None or server.is_closed:
            server = _servers[os.getpid()] = MetricsServer(host, port)
            _LOG.info("metrics at %s", server.url)
        elif port not in (0, server.port):
            _LOG.warning(
                "metrics.port=%s is not used: this process serves all its metrics at %s",
                port,
                server.url,
            )
    server.show(components)
    return server


def stop_serving() -> None:
    """Close the endpoint of this process, if there is one."""
    with _servers_lock:
        server = _servers.pop(os.getpid(), None)
    if server is not None:
        server.close()


def serve_if_asked(options: Options, components: Components) -> MetricsServer | None:
    """Serve metrics if the option ``metrics.port`` asks for it."""
    port: int | None = options.get("metrics.port")
    if port is None:
        return None
    server = serve(components, port, options.get("metrics.host"))
    announce(f"metrics at {server.url}")
    return server
