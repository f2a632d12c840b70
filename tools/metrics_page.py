"""The page of all metrics, docs/metrics.md, made from the table that the endpoint works with.

Run ``python -m tools.metrics_page docs/metrics.md``. A test holds the file against the
table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from pulsar_txn_spark.metrics import METRICS, VALUES, Kind, Metric

_INTRODUCTION = """\
# Metrics

This page is generated: `python -m tools.metrics_page docs/metrics.md`. A dashboard for
Grafana is [`conf/grafana-dashboard.json`](../conf/grafana-dashboard.json).

## Where they are served

Metrics are read from the metadata store, so **every endpoint of a store shows the same**. One
endpoint is enough. With several, take `max by (...)` over `instance`, not `sum`. All of them serve
HTTP at `/metrics`, listen on loopback by default, and have no authentication. Port 0 is any free port.

| Endpoint | Process | Lives for |
|---|---|---|
| `pulsar-txn sweep --every 30 --metrics-port 9464` | the sweeper | as long as you let it: the one to choose in production |
| option `metrics.port` of `readStream.format("pulsar_txn")` | the source's Python process beside the driver | the query |
| option `metrics.port` of `TransactionalSink`, `@transactional` | the driver's Python process | the driver |
| `pulsar_txn_spark.serve_metrics(options, port=9464)` | the one that calls it | that process |

`writeStream.format("pulsar_txn")` and `write.format(...)` refuse the option. Spark runs their commits in Python workers
that it starts, reuses and ends by itself. None of them lives long enough to be scraped.
One process has one endpoint; a further store in the same process is added to it. A source whose port is
taken logs a warning, continues, and tries again after each micro-batch.

PySpark has no custom progress metrics for data sources in Python. `StreamingQueryProgress` shows the `latestOffset` of a
source, without limits.

## What is counted, and by whom

- **In the counted step itself** ("script", "with the decision"): decisions, aborts by cause, operation records. These
  counts are exact for any process, and outlive it. Of `header_cas_total` that holds for `ok`. `conflict` and `reject` change
  nothing, and are flushed later.
- **By processes, flushed with the decision**: counts of the tasks and of the commit. They go to the driver's side in Spark's
  commit messages, and into the store in the same step as the decision. So the figures of micro-batches are those of
  committed ones, each once.
- **By processes, flushed in other ways**: with the next decision, sweep or scrape of the process, and at least every 30 s
  while it works. Counts that a killed process had not flushed are missing. So are those of a failed or speculative task
  whose Python worker ended with it. A flush whose reply is lost is not repeated. Counts may be lost that way; none is
  counted twice.
- **Gauges** show what is in the store at the scrape.

A scrape scans no keys. It makes these requests:

- one for each coordinator, and one that flushes the process's own counts;
- one for the list of topics, and one for each topic;
- one for the gates of all segments (on a Redis Cluster: one each);
- one or two to the log for each segment that blocks readers.

Answers are cached for 2 s. Labels are bounded. `cluster` is the uuid of the store. The store has a fixed number of
coordinators (four by default). Other label sets are closed, and no more than 100 segments have samples of their own.
"""  # noqa: E501 - a row of a table cannot be broken


def _labels(metric: Metric) -> str:
    labels = []
    for label in metric.labels:
        values = VALUES.get(label)
        labels.append(f"`{label}`" + (f" ({', '.join(values)})" if values else ""))
    return ", ".join(labels)


def _counted(metric: Metric) -> str:
    if metric.by_script:
        return "script"
    if metric.with_decision:
        return "with the decision"
    return "at the scrape" if metric.kind is Kind.GAUGE else "processes"


def _tables() -> Iterator[str]:
    groups = {
        "PIP-471": "The four of PIP-471",
        "PIP-160": "Aggregation (PIP-160)",
        "PIP-373": "Topics with transactions (PIP-373)",
        "": "What an operator asks first",
    }
    for source in ("", "PIP-471", "PIP-160", "PIP-373"):
        yield f"## {groups[source]}"
        yield ""
        if source == "PIP-160":
            yield (
                "Counters have PIP-160's names, which lack `_total`: they are exported as "
                "`untyped`. Bucket bounds are PIP-160's, in Prometheus' form (`le` is a number)."
            )
            yield ""
        yield "| Metric | Type | Labels beside `cluster` | Counted | Meaning | If it is bad |"
        yield "|---|---|---|---|---|---|"
        for metric in METRICS:
            if metric.source == source:
                cells = (
                    f"`{metric.name}`",
                    metric.kind.value,
                    _labels(metric),
                    _counted(metric),
                    metric.meaning,
                    metric.remedy,
                )
                yield f"| {' | '.join(cells)} |"
        yield ""


def page() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *_tables()])


def main(arguments: list[str]) -> int:
    """Write the page to the file that is named, or print it."""
    if arguments:
        Path(arguments[0]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
