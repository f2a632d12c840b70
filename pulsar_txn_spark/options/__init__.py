"""Options: the table of them, what their values may be, and a validated set."""

from pulsar_txn_spark.options.hints import NO_OPTIONS
from pulsar_txn_spark.options.parsed import Options, refuse_endpoint
from pulsar_txn_spark.options.table import (
    OPTIONS,
    SCOPE_OPTION,
    Depends,
    Option,
    Use,
    default_of,
    documented,
    is_secret,
)
from pulsar_txn_spark.options.values import (
    LEASE_MS,
    METADATA_COLUMNS,
    Offsets,
    Times,
    parse_time_ms,
    subscription_name,
)

__all__ = [
    "LEASE_MS",
    "METADATA_COLUMNS",
    "NO_OPTIONS",
    "OPTIONS",
    "SCOPE_OPTION",
    "Depends",
    "Offsets",
    "Option",
    "Options",
    "Times",
    "Use",
    "default_of",
    "documented",
    "is_secret",
    "parse_time_ms",
    "refuse_endpoint",
    "subscription_name",
]
