"""Tables of Spark's catalog: the comment of a column keeps the options of CREATE TABLE.

The column is ``__messageId``, which nobody can write. So a DataFrame that was read from a table and
is written elsewhere takes no option of the table along: its message ids are refused. In a row that
INSERT writes, Spark puts null there, with the comment in the table that it writes to
(``TableOutputResolver``).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from pulsar_txn_spark.options import (
    Options,
    Use,
    fitting,
    from_comment,
    merged,
    parse_option,
    to_comment,
)
from pulsar_txn_spark.spark.rows import MESSAGE_ID, schema_of
from pulsar_txn_spark.spark.source.topics import check_source


def columns_of_new_table(created: Mapping[str, str]) -> StructType:
    """Return the columns of a table that CREATE TABLE makes, after its options were checked.

    Parameters
    ----------
    created : mapping of str to str
        The options that CREATE TABLE names, by keys in lower case.

    Raises
    ------
    OptionError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
    """
    # Who reads the table later may do so in another working folder.
    folders = {
        key: parse_option(key, text, Use.CONNECT)
        for key, text in created.items()
        if key == "store.path"
    }
    comment = to_comment({**created, **folders})
    reading, writing = fitting(created, Use.READ), fitting(created, Use.WRITE)
    metadata_columns = check_source(reading).get("metadata.columns")
    if writing.keys() - reading.keys():
        Options(writing, Use.WRITE)
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, {"comment": comment})
            if field.name == MESSAGE_ID
            else field
            for field in schema_of(metadata_columns).fields
        ]
    )


def with_table_options(
    options: Mapping[str, str], schema: StructType, use: Use
) -> Mapping[str, str]:
    """Add the options of the table that a schema belongs to, if any; those of the query prevail.

    Parameters
    ----------
    options : mapping of str to str
        What the query names.
    schema : StructType
        The columns that are read or written.
    use : Use
        Options of the table that mean nothing for it are left out: the table serves several uses.

    Raises
    ------
    OptionError
        If the comment is not as this release writes it.
    """
    if MESSAGE_ID not in schema.names:
        return options
    kept = from_comment((schema[MESSAGE_ID].metadata or {}).get("comment", ""))
    return options if kept is None else merged(fitting(kept, use), options)
