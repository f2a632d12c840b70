"""Options: the table of them, what their values may be, and a validated set."""

from pulsar_txn_spark.options.catalog_table import (
    created_options,
    fitting,
    from_comment,
    to_comment,
)
from pulsar_txn_spark.options.environment import environment_words, passthrough_keys
from pulsar_txn_spark.options.file import FILE_OPTION, merged, read_file
from pulsar_txn_spark.options.hints import NO_OPTIONS
from pulsar_txn_spark.options.parsed import Options, parse_option, refuse_endpoint
from pulsar_txn_spark.options.table import (
    OPTIONS,
    SCOPE_OPTION,
    SCOPE_WRITE,
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
    NATIVE,
    Offsets,
    Times,
    parse_time_ms,
    subscription_name,
)

__all__ = [
    "FILE_OPTION",
    "LEASE_MS",
    "METADATA_COLUMNS",
    "NATIVE",
    "NO_OPTIONS",
    "OPTIONS",
    "SCOPE_OPTION",
    "SCOPE_WRITE",
    "Depends",
    "Offsets",
    "Option",
    "Options",
    "Times",
    "Use",
    "created_options",
    "default_of",
    "documented",
    "environment_words",
    "fitting",
    "from_comment",
    "is_secret",
    "merged",
    "parse_option",
    "parse_time_ms",
    "passthrough_keys",
    "read_file",
    "refuse_endpoint",
    "subscription_name",
    "to_comment",
]
