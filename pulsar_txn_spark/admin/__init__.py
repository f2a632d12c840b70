"""Administration from Python: topics, segments, subscriptions, retention and scaling."""

from pulsar_txn_spark.admin.admin import Admin
from pulsar_txn_spark.admin.reset_target import ResetTo
from pulsar_txn_spark.admin.subscriptions import CursorMove
from pulsar_txn_spark.segments.retention import Retention
from pulsar_txn_spark.segments.scaling import ScalingPolicy
from pulsar_txn_spark.segments.topology import Segment, Topology

__all__ = ["Admin", "CursorMove", "ResetTo", "Retention", "ScalingPolicy", "Segment", "Topology"]
