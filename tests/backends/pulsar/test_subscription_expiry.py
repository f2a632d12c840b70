"""Where subscriptions expire, the internal one would, and unread data with it: it is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.subscription_expiry import Expiry, SubscriptionExpiry
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import SegmentLogError, SegmentLogUnavailableError
from tests.support.fake_admin_api import FakeAdminApi, fake_admin_api

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/t"
POLICIES = f"/admin/v2/persistent/{NAMESPACE}/t"
OF_NAMESPACE = f"/admin/v2/namespaces/{NAMESPACE}/subscriptionExpirationTime"
OF_BROKERS = "/admin/v2/brokers/configuration/runtime"
KEEP = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
DROP = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
WARNING = "nobody can tell whether subscriptions of public/default expire"


@pytest.fixture
def api() -> Iterator[FakeAdminApi]:
    """Give a broker with the topic, on which no subscription expires."""
    with fake_admin_api() as api:
        quota = {"limitSize": -1, "limitTime": -1}
        api.settings = {
            OF_NAMESPACE: None,
            OF_BROKERS: {"subscriptionExpirationTimeMinutes": "0"},
            f"{POLICIES}/messageTTL": 0,
            f"{POLICIES}/inactiveTopicPolicies": None,
            f"{POLICIES}/retention": KEEP,
            f"{POLICIES}/backlogQuotaMap": {"destination_storage": quota, "message_age": quota},
        }
        yield api


@pytest.fixture
def admin(api: FakeAdminApi) -> Iterator[PulsarAdmin]:
    admin = PulsarAdmin(PulsarConfig("pulsar://127.0.0.1:1", api.url))
    yield admin
    admin.close()


def brokers_expire(api: FakeAdminApi, minutes: int) -> None:
    api.settings[OF_BROKERS] = {"subscriptionExpirationTimeMinutes": str(minutes)}


@pytest.mark.parametrize(
    "of_namespace, of_brokers, expected",
    [
        (None, 0, (0, "the brokers' subscriptionExpirationTimeMinutes")),
        (None, 7, (7, "the brokers' subscriptionExpirationTimeMinutes")),
        (0, 7, (0, "the namespace public/default")),
        (5, 0, (5, "the namespace public/default")),
        (5, 7, (5, "the namespace public/default")),
        (None, -1, (0, "the brokers' subscriptionExpirationTimeMinutes")),
        (-1, 7, (0, "the namespace public/default")),
    ],
)
def test_the_brokers_setting_counts_where_the_namespace_has_none(
    api: FakeAdminApi,
    admin: PulsarAdmin,
    of_namespace: int | None,
    of_brokers: int,
    expected: tuple[int, str],
) -> None:
    api.settings[OF_NAMESPACE] = of_namespace
    brokers_expire(api, of_brokers)
    assert admin.subscription_expiry(TOPIC) == Expiry(NAMESPACE, *expected)


def test_a_topic_is_refused_where_the_brokers_expire_subscriptions(
    api: FakeAdminApi, admin: PulsarAdmin
) -> None:
    admin.keep_all_data(TOPIC)
    brokers_expire(api, 7)
    admin = PulsarAdmin(PulsarConfig("pulsar://127.0.0.1:1", api.url))
    with pytest.raises(SegmentLogError, match="expires subscriptions after 7 minutes") as raised:
        admin.keep_all_data(TOPIC)
    remedy = "pulsar-admin namespaces set-subscription-expiration-time -t 0 public/default"
    assert remedy in str(raised.value)
    api.settings[OF_NAMESPACE] = 0
    admin.keep_all_data(TOPIC)
    admin.close()


@pytest.mark.parametrize("before", [KEEP, DROP], ids=["kept", "trimmed before"])
def test_retention_is_on_where_subscriptions_expire(
    api: FakeAdminApi, admin: PulsarAdmin, before: dict[str, int]
) -> None:
    brokers_expire(api, 7)
    api.settings[f"{POLICIES}/retention"] = before
    with pytest.raises(SegmentLogError, match=f"retention of {TOPIC} stays on"):
        admin.retain_nothing(TOPIC)
    assert api.settings[f"{POLICIES}/retention"] == KEEP
    brokers_expire(api, 0)
    admin.retain_nothing(TOPIC)
    assert api.settings[f"{POLICIES}/retention"] == DROP


@pytest.mark.parametrize(
    "refused, status",
    [(OF_NAMESPACE, 401), (OF_NAMESPACE, 403), (OF_BROKERS, 401), (OF_BROKERS, 404)],
)
def test_what_we_may_not_read_is_warned_of_once(
    api: FakeAdminApi,
    admin: PulsarAdmin,
    caplog: pytest.LogCaptureFixture,
    refused: str,
    status: int,
) -> None:
    brokers_expire(api, 7)
    api.instead = lambda path: (status, "") if path == refused else None
    with caplog.at_level(logging.WARNING):
        admin.keep_all_data(TOPIC)
        admin.retain_nothing(TOPIC)
    (warned,) = [record.getMessage() for record in caplog.records]
    assert WARNING in warned
    assert "set-subscription-expiration-time -t 0 public/default" in warned


def test_brokers_that_do_not_state_the_setting_are_warned_of_once(
    api: FakeAdminApi, admin: PulsarAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    api.settings[OF_BROKERS] = {"brokerVersion": "4.0.7"}
    with caplog.at_level(logging.WARNING):
        admin.keep_all_data(TOPIC)
        admin.retain_nothing(TOPIC)
    (warned,) = [record.getMessage() for record in caplog.records]
    assert WARNING in warned
    assert "we cannot read the brokers' subscriptionExpirationTimeMinutes" in warned


def test_a_broker_that_does_not_answer_is_no_reason_to_go_on(
    api: FakeAdminApi, admin: PulsarAdmin
) -> None:
    api.instead = lambda path: (500, "") if path == OF_BROKERS else None
    with pytest.raises(SegmentLogUnavailableError, match="brokers/configuration/runtime"):
        admin.retain_nothing(TOPIC)
    assert api.settings[f"{POLICIES}/retention"] == KEEP


def test_a_sweep_of_many_topics_asks_once_and_the_next_one_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    answers: dict[str, bytes | None] = {"subscriptionExpirationTime": b"0"}
    now = 100.0

    def ask(path: str) -> bytes | None:
        asked.append(path)
        return answers[path.rpartition("/")[2]]

    expiry = SubscriptionExpiry(ask, lambda: now)
    for _ in range(3):
        assert expiry.of("a/b").minutes == 0
    assert expiry.of("a/c").minutes == 0
    assert asked == [f"/namespaces/a/{n}/subscriptionExpirationTime" for n in "bc"]
    now += 30
    answers["subscriptionExpirationTime"] = b"5"
    assert expiry.of("a/b").minutes == 5
    answers["subscriptionExpirationTime"] = b"0"
    assert expiry.of("a/b").minutes == 0, "the mend counts at once"
    with caplog.at_level(logging.WARNING):
        answers["subscriptionExpirationTime"] = None
        for _ in range(2):
            now += 30
            assert expiry.of("a/b").minutes is None
    assert len(caplog.records) == 1
