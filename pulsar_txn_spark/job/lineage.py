"""What a plan of Spark's does to rows: shuffles, random values, and where a key comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from pulsar_txn_spark.spark.rows import KEY

_EXCHANGE = re.compile(r"(?<!Broadcast)(?<!Reused)\bExchange (\w+)")


def analyzed_plan(frame: DataFrame) -> Any:
    """Return the analyzed plan, a Java object."""
    return _execution(frame).analyzed()


def _execution(frame: DataFrame) -> Any:
    java: Any = frame._jdf  # noqa: SLF001 - PySpark shows plans as texts only
    return java.queryExecution()


def physical_plan(frame: DataFrame) -> str:
    """Return the physical plan as ``DataFrame.explain`` prints it."""
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001 - the text that explain() prints
    mode = jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple")
    # Spark plans a stream as such only if it knows the parsed plan to be one: not behind a view.
    execution = _execution(frame.select("*"))
    text: str = jvm.PythonSQLUtils.explainString(execution, mode.name())
    return text.strip()


def shuffles(plan: str) -> list[str]:
    """Return the exchanges of a physical plan, by their partitioning, each once."""
    return list(dict.fromkeys(_EXCHANGE.findall(plan)))


def nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan or an expression, from the top to the bottom."""
    yield plan
    for child in _children(plan):
        yield from nodes(child)


def _children(node: Any) -> Iterator[Any]:
    children = node.children()
    return (children.apply(number) for number in range(children.size()))


def _output(node: Any) -> Iterator[Any]:
    output = node.output()
    return (output.apply(number) for number in range(output.size()))


def expressions(plan: Any) -> Iterator[Any]:
    """Yield the expressions of all nodes of a plan, with those inside of them."""
    for node in nodes(plan):
        own = node.expressions()
        for number in range(own.size()):
            yield from nodes(own.apply(number))


def random_functions(frame: DataFrame) -> list[str]:
    """Return the functions whose value is another one each time, by name, each once."""
    names = []
    for expression in expressions(analyzed_plan(frame)):
        children = expression.children()
        own = all(children.apply(n).deterministic() for n in range(children.size()))
        if not expression.deterministic() and own:
            names.append(str(expression.prettyName()))
    return list(dict.fromkeys(names))


CLOCK = frozenset({"current_timestamp", "now", "current_date", "localtimestamp", "current_time"})


def clock_functions(frame: DataFrame) -> list[str]:
    """Return the functions that ask the clock, by name, each once."""
    names = (str(e.prettyName()) for e in expressions(analyzed_plan(frame)))
    return [name for name in dict.fromkeys(names) if name in CLOCK]


def keeps_key(frame: DataFrame, origins: set[int]) -> bool:
    """Tell whether the column ``__key`` is one of these attributes, unchanged or cast.

    Parameters
    ----------
    frame : DataFrame
    origins : set of int
        Ids of attributes, as :func:`key_id` returns them.
    """
    plan = analyzed_plan(frame)
    made_of = {}
    for expression in expressions(plan):
        if expression.getClass().getSimpleName() == "Alias":
            made_of[int(expression.exprId().id())] = expression.child()
    also = _united(plan)
    seen: set[int] = set()

    def keeps(attribute: int | None) -> bool:
        if attribute is None:
            return False
        if attribute in seen:
            return True  # asked already: it has no further origin here
        seen.add(attribute)
        own = attribute in origins or keeps(_attribute_of(made_of.get(attribute)))
        return own and all(map(keeps, also.get(attribute, ())))

    return keeps(key_id(frame))


def _united(plan: Any) -> dict[int, list[int]]:
    """Return which attributes come under the id of another one: those of a union's later parts."""
    also: dict[int, list[int]] = {}
    for node in nodes(plan):
        if node.getClass().getSimpleName() != "Union":
            continue
        first, *others = [[int(a.exprId().id()) for a in _output(c)] for c in _children(node)]
        for other in others:
            for shown, attribute in zip(first, other, strict=True):
                also.setdefault(shown, []).append(attribute)
    return also


def sorts(frame: DataFrame) -> bool:
    """Tell whether the rows are sorted, within partitions or over all of them."""
    return any(node.getClass().getSimpleName() == "Sort" for node in nodes(analyzed_plan(frame)))


def key_id(frame: DataFrame) -> int | None:
    """Return the id of the attribute ``__key``; None without one."""
    for attribute in _output(analyzed_plan(frame)):
        if attribute.name() == KEY:
            return int(attribute.exprId().id())
    return None


def _attribute_of(expression: Any) -> int | None:
    while expression is not None:
        kind = expression.getClass().getSimpleName()
        if kind == "AttributeReference":
            return int(expression.exprId().id())
        if kind not in {"Cast", "UpCast", "Alias"}:
            return None
        expression = expression.child()
    return None
