"""The part of the demo that nobody kills: fills the input and, when told, looks at the outputs.

One process for both, because a Spark that waits costs nothing and another one costs many seconds.
"""

from __future__ import annotations

import contextlib

from demo.check import find
from demo.child import begin, emit, spark_session, wait_to_be_told
from demo.load import create_topics, load_flights
from demo.plain_consumers import PlainConsumers
from demo.proof import expectation
from demo.topics import OUTPUTS


def main() -> None:
    """Run as a process of its own."""
    settings = begin()
    create_topics(settings)
    with contextlib.ExitStack() as stack:
        # From before the first row on: it is to see what plain consumers see all the time.
        plain = None
        if settings.gate == "broker":
            plain = stack.enter_context(PlainConsumers(settings.options, OUTPUTS))
        emit("created")
        spark = spark_session("observer", settings)
        load_flights(spark, settings)
        emit("loaded")
        expected = expectation()
        wait_to_be_told()
        emit("findings", **find(spark, settings, expected, plain))
        spark.stop()


if __name__ == "__main__":
    main()
