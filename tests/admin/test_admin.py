"""``Admin``: options once, and everything that an administrator does to a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import redis

from pulsar_txn_spark.admin import Admin, Retention, ScalingPolicy, Segment, Topology
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.errors import OptionError, TopicExistsError, TopicNotFoundError
from pulsar_txn_spark.segments.topology import GatedBy
from pulsar_txn_spark.store.redis import server
from pulsar_txn_spark.store.redis.connection import close_all

NAME = "topic://public/default/administered"


@pytest.fixture
def admin(redis_path: str, redis_client: redis.Redis) -> Admin:
    return Admin({"store.path": redis_path})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "store")
    yield path
    close_all()
    server.stop_server(path)


def names(segments: Iterable[Segment]) -> list[str]:
    return [segment.descriptor for segment in segments]


def test_a_wrong_option_is_refused_at_once_and_nothing_is_opened_before_it_is_needed(
    folder: str,
) -> None:
    with pytest.raises(OptionError, match=r"did you mean 'store\.path'"):
        Admin({"store.pth": folder})
    admin = Admin({"store.path": folder})
    assert not Path(folder).exists()
    assert admin.list_topics() == []
    assert Path(folder).exists()


def test_an_admin_shows_no_secret() -> None:
    shown = repr(Admin({"store.url": "redis://me:hunter2@host", "store.password": "hunter2"}))
    assert shown.startswith("Admin(")
    assert "hunter2" not in shown


def test_later_changes_of_the_mapping_do_not_change_the_options(folder: str) -> None:
    options = {"store.path": folder}
    admin = Admin(options)
    options["store.path"] = "/proc/elsewhere"
    assert admin.list_topics() == []


def test_a_topic_is_created_changed_and_deleted(admin: Admin) -> None:
    created = admin.create_topic("administered", segments=2, retention_time="1h")
    assert isinstance(created, Topology)
    assert admin.list_topics() == [NAME]
    with pytest.raises(TopicExistsError):
        admin.create_topic(NAME, segments=2)
    assert admin.create_topic(NAME, segments=2, exist_ok=True) == created
    split = admin.split_segment(NAME, "0", at=0x1000)
    assert names(split.active) == ["0000-0fff-2", "1000-7fff-3", "8000-ffff-1"]
    merged = admin.merge_segments(NAME, ["3", "8000-ffff-1"])
    assert names(merged.active) == ["0000-0fff-2", "1000-ffff-4"]
    sealed = admin.seal_segment(NAME, "4")
    assert names(sealed.active) == ["0000-0fff-2", "1000-ffff-5"]
    assert admin.find_topic(NAME) == sealed
    admin.delete_topic(NAME)
    assert admin.list_topics() == []
    with pytest.raises(TopicNotFoundError):
        admin.find_topic(NAME)


def test_a_topic_keeps_the_gate_that_it_was_created_with(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert admin.create_topic("read", segments=1).gate is GatedBy.READER
    with pytest.raises(OptionError, match="only brokers of Pulsar can gate"):
        admin.create_topic("gated", segments=1, gate="broker")
    with pytest.raises(OptionError, match="expected reader or broker, found 'nobody'"):
        admin.create_topic("gated", segments=1, gate="nobody")
    monkeypatch.setattr(EmbeddedSegmentLog, "backend", "pulsar")
    gated = admin.create_topic("gated", segments=1, gate="broker")
    assert gated.gate is GatedBy.BROKER
    split = admin.split_segment("gated", "0")
    assert split.gate_store == gated.gate_store != ""
    assert admin.create_topic("gated", segments=1, gate="broker", exist_ok=True) == split
    with pytest.raises(TopicExistsError, match="gated by the broker, expected the reader"):
        admin.create_topic("gated", segments=1, exist_ok=True)


def test_an_existing_topic_is_gated_by_sealing_all_its_segments(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("embedded", segments=1)
    with pytest.raises(OptionError, match="only brokers of Pulsar can gate"):
        admin.gate_topic("embedded")
    monkeypatch.setattr(EmbeddedSegmentLog, "backend", "pulsar")
    before = admin.create_topic("plain", segments=2)
    gated = admin.gate_topic("plain")
    assert gated.gate is GatedBy.BROKER
    assert names(gated.active) == ["0000-7fff-2", "8000-ffff-3"]
    assert [segment.sealed for segment in gated.segments] == [True, True, False, False]
    assert [segment.ref for segment in gated.segments[:2]] == [s.ref for s in before.segments]
    assert admin.gate_topic("plain") == gated


def test_retention_scaling_and_properties_are_of_a_topic(admin: Admin) -> None:
    admin.create_topic(NAME, segments=1, retention_time="1h")
    assert admin.topic_retention(NAME) == Retention(time_ms=3_600_000)
    assert admin.set_retention(NAME, size="1GiB") == admin.topic_retention(NAME)
    assert admin.topic_scaling(NAME) == ScalingPolicy()
    policy = ScalingPolicy(enabled=True, max_segments=8)
    admin.set_scaling(NAME, policy)
    assert admin.topic_scaling(NAME) == policy
    admin.set_topic_property(NAME, "team", "a")
    assert admin.topic_properties(NAME)["team"] == "a"
    assert admin.remove_topic_property(NAME, "team")
    assert not admin.remove_topic_property(NAME, "team")
    for change in (
        lambda: admin.set_retention("nobody", time="1h"),
        lambda: admin.set_scaling("nobody", policy),
        lambda: admin.set_topic_property("nobody", "team", "a"),
    ):
        with pytest.raises(TopicNotFoundError):
            change()
