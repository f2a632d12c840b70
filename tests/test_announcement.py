"""What the user has to hear is told where he looks, once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis
from pyspark.sql.types import StructType

from pulsar_txn_spark import Admin, announcement, prometheus
from pulsar_txn_spark.announcement import announce
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.transport import choose_and_say
from pulsar_txn_spark.cli import doctor
from pulsar_txn_spark.cli.format_lookup import Lookup
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader

AWAY = {"service.url": "pulsar://127.0.0.1:1", "admin.url": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement, "_announced", set())


def test_an_announcement_is_one_line_on_standard_error_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    announce("a")
    announce("a")
    announce("b")
    assert capsys.readouterr().err == "pulsar_txn: a\npulsar_txn: b\n"


def test_an_announcement_onto_a_closed_standard_error_is_on_no_other_stream(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    announce("a")
    assert capsys.readouterr().out == ""


def test_an_announcement_onto_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", buffering=1) as full, Path(os.devnull).open("w") as null:
        monkeypatch.setattr("sys.stderr", full)
        announce("a")
        os.dup2(null.fileno(), full.fileno())  # what is left in the buffer goes there


def test_the_url_of_any_free_port_is_named_on_standard_error(
    redis_path: str, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"store.path": redis_path, "topic": "t"}
    Admin({"store.path": redis_path}).create_topic("t", segments=1)
    reader = PulsarTxnStreamReader({**given, "metrics.port": "0"}, StructType())
    try:
        reader.initialOffset()
        url = prometheus.serve(
            open_components(Options({"store.path": redis_path}, Use.CONNECT)), 0
        ).url
        assert f"pulsar_txn: metrics at {url}\n" in capsys.readouterr().err
    finally:
        prometheus.stop_serving()


@pytest.mark.parametrize(
    "transport,client,chosen,why",
    [
        ("auto", {}, "wire", "no option needs pulsar-client"),
        (
            "auto",
            {"authPluginClassName": "athenz", "authParams": '{"a": "b"}'},
            "client",
            "only pulsar-client has the authentication athenz",
        ),
        ("client", {}, "client", "the option 'transport' says so"),
        ("wire", {}, "wire", "the option 'transport' says so"),
    ],
)
def test_the_choice_of_the_transport_comes_with_its_reason(
    transport: str, client: dict[str, str], chosen: str, why: str
) -> None:
    config = PulsarConfig(
        AWAY["service.url"], AWAY["admin.url"], client=as_pairs(client), transport=transport
    )
    found = choose_and_say(config)
    assert found[0] == chosen
    assert found[1].startswith(why)


def test_the_source_tells_its_transport_beside_the_driver(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader = PulsarTxnStreamReader({**AWAY, "topic": "t"}, StructType())
    reader._announce_transport()
    assert capsys.readouterr().err == "pulsar_txn: transport wire: no option needs pulsar-client\n"


def test_the_doctor_names_the_transport_also_of_a_pulsar_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PulsarAdmin, "broker_version", lambda _: "4.0.7")
    monkeypatch.setattr(doctor, "look_up", lambda: Lookup("python", "PYSPARK_PYTHON", visible=True))
    found = list(doctor._pulsar(Options(AWAY, Use.CONNECT), [], [], []))
    assert ("transport", "wire: no option needs pulsar-client") in {
        (one.check, one.found) for one in found
    }
