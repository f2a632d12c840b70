"""Error messages name functions of Python; on the command line they name its commands."""

from __future__ import annotations

import re

COMMANDS = {
    "adopt_topic": "topic adopt",
    "create_topic": "topic create",
    "delete_subscription": "subscription delete",
    "delete_topic": "topic delete",
    "find_topic": "topic describe",
    "list_topics": "topic list",
    "merge_segments": "topic merge",
    "remove_topic_property": "topic remove-property",
    "reset_subscription": "subscription reset",
    "seal_segment": "topic seal",
    "gate_topic": "topic gate",
    "serve_metrics": "sweep --every 30 --metrics-port PORT",
    "set_retention": "topic retention",
    "set_scaling": "topic scaling",
    "set_topic_property": "topic set-property",
    "split_segment": "topic split",
    "topic_properties": "topic properties",
    "topic_retention": "topic retention",
    "topic_scaling": "topic scaling",
}
"""Method of Admin, or function of the package -> the command that does the same."""

_CALL = re.compile(
    rf"pulsar_txn_spark\.(?:Admin(?:\(options\))?\.)?({'|'.join(COMMANDS)})\b(\([^()]*\))?"
)


def in_commands(text: str) -> str:
    """Replace the names of Python's functions in a message by those of this tool's commands."""
    return _CALL.sub(lambda call: f"'pulsar-txn {COMMANDS[call[1]]}'", text)
