"""What a refused option is answered with: which one was meant, or what to use instead."""

from __future__ import annotations

import difflib

from pulsar_txn_spark.options.table import documented
from pulsar_txn_spark.redaction import redacted

NO_OPTIONS = (
    ". (Spark hands over no option of a table. A table keeps its options if CREATE TABLE names no "
    "columns. If it names some, and for CREATE TABLE AS SELECT and toTable(), the query has to "
    "name them. So: SELECT * FROM t WITH (topic = '...'), INSERT INTO t WITH (...), .option())"
)
"""Added to an error where no option at all has come."""

_OF_OTHERS = {
    "maxoffsetspertrigger": "use 'maxMessagesPerTrigger'",
    "minoffsetspertrigger": "use 'minMessagesPerTrigger'",
    "maxrowspertrigger": "use 'maxMessagesPerTrigger'",
    "maxentriespertrigger": "use 'maxMessagesPerTrigger'",
    "maxfilespertrigger": "use 'maxMessagesPerTrigger'",
    "subscribe": "use 'topic' or 'topics'",
    "assign": "use 'topic' or 'topics', with 'startingOffsets' as JSON",
    "subscribepattern": "use 'topicsPattern'",
    "topicpattern": "use 'topicsPattern'",
    "kafka.bootstrap.servers": "use 'service.url' and 'admin.url'",
    "bootstrap.servers": "use 'service.url' and 'admin.url'",
    "predefinedsubscription": "use 'subscription'",
    "subscriptionname": "use 'subscription'",
    "subscriptionprefix": "use 'subscription', which is taken as it stands",
    "groupid": "use 'subscription'",
    "kafka.group.id": "use 'subscription'",
    "startingtime": "use 'startingTimestamp' or 'startingOffsetsByTimestamp'",
    "endingtime": "use 'endingTimestamp' or 'endingOffsetsByTimestamp'",
    "polltimeoutms": "drop it: a read ends where it was planned to end",
    "transactional.id": "drop it: the query's id is what tells its transactions",
}
"""What the connectors for Kafka and Pulsar have, and Spark's file source, in lower case."""


def unknown(key: str) -> str:
    """Say that there is no such option, and which one may have been meant."""
    if key.lower() in _OF_OTHERS:
        return f"unknown option {key!r}: {_OF_OTHERS[key.lower()]}"
    known = {option.key.lower(): option.key for option in documented()}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = (
        f": did you mean {known[near[0]]!r}?"
        if near
        else f". Known are {', '.join(known.values())}"
    )
    return f"unknown option {redacted(key)!r}{hint}"
