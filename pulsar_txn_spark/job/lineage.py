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
    children = plan.children()
    for number in range(children.size()):
        yield from nodes(children.apply(number))


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
    attribute: int | None = key_id(frame)
    seen: set[int] = set()
    while attribute is not None and attribute not in seen:
        if attribute in origins:
            return True
        seen.add(attribute)
        attribute = _attribute_of(made_of.get(attribute))
    return False


def key_id(frame: DataFrame) -> int | None:
    """Return the id of the attribute ``__key``; None without one."""
    output = analyzed_plan(frame).output()
    for number in range(output.size()):
        attribute = output.apply(number)
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
