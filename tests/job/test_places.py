from __future__ import annotations

from pulsar_txn_spark.backports import tomllib
from pulsar_txn_spark.job.places import Places

TEXT = '''# a comment
[job]
name = "a = b"

[options]
store.url = "x"   # dotted
"store.path" = "y"

[[source]]
name = """
not = a key
[not.a.table]
"""
watermark = { column = "c", delay = "d" }
[source.options]
header = true

[[source]]
name = \'\'\'one line\'\'\'
topic = "t"
[source.watermark]
column = "e"
'''


def test_each_key_and_each_table_has_its_line() -> None:
    assert tomllib.loads(TEXT)
    places = Places(TEXT)
    assert [places.line(path) for path in (("job",), ("job", "name"))] == [2, 3]
    assert places.line(("options", "store", "url")) == 6
    assert places.line(("options", "store.path")) == 7
    assert places.line(("source", 0)) == 9
    assert places.line(("source", 0, "name")) == 10
    assert places.line(("source", 0, "options", "header")) == 16
    assert places.line(("source", 1)) == 18
    assert places.line(("source", 1, "topic")) == 20
    assert places.line(("source", 1, "watermark", "column")) == 22


def test_a_key_of_an_inline_table_has_the_line_of_that_table() -> None:
    assert Places(TEXT).line(("source", 0, "watermark", "delay")) == 14


def test_what_is_nowhere_has_no_line() -> None:
    assert Places(TEXT).line(("sink", 0, "topic")) is None
    assert Places("").line(("job",)) is None


def test_a_text_of_several_lines_begins_behind_its_quotation_marks() -> None:
    places = Places(TEXT)
    assert places.content(("source", 0, "name")) == 11
    assert places.content(("source", 1, "name")) == 19
    assert Places('[a]\nb = """first\nsecond"""').content(("a", "b")) == 2
