"""Whether brokers delete subscriptions that nobody is connected to, and with them unread data.

A namespace's own value counts, also 0. Where it has none, the brokers' setting does (Pulsar's
``PersistentTopic.checkInactiveSubscriptions``). Less than 0 means never as well. No policy of a
topic overrides either.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

BROKERS_SETTING = "subscriptionExpirationTimeMinutes"

_logger = logging.getLogger(__name__)

_VALID_SECONDS = 15.0  # a sweep asks once for all topics of a namespace, and the next one again


class Expiry(NamedTuple):
    """When subscriptions of a namespace expire.

    Parameters
    ----------
    namespace : str
        ``tenant/namespace``.
    minutes : int or None
        0 = never, None = nobody can tell.
    source : str
        Whose setting that is.
    """

    namespace: str
    minutes: int | None
    source: str

    @property
    def remedy(self) -> str:
        """The command that lets them never expire."""
        return f"pulsar-admin namespaces set-subscription-expiration-time -t 0 {self.namespace}"

    def __str__(self) -> str:
        if self.minutes is None:
            return (
                f"nobody can tell whether subscriptions of {self.namespace} expire: we cannot "
                f"read {self.source}"
            )
        if self.minutes == 0:
            return f"subscriptions of {self.namespace} never expire, by {self.source}"
        return (
            f"{self.source} expires subscriptions after {self.minutes} minutes. The internal "
            f"subscription of each segment in {self.namespace}, which keeps unread data, would "
            "vanish"
        )


class SubscriptionExpiry:
    """Knows for some seconds when subscriptions expire; safe to use from several threads.

    Parameters
    ----------
    ask : callable
        Returns what the admin API answers to a GET of a path; None where we may not ask.
    clock : callable
        Returns seconds that never go back.
    """

    def __init__(
        self, ask: Callable[[str], bytes | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._known: dict[str, tuple[Expiry, float]] = {}
        self._warned: set[str] = set()

    def of(self, namespace: str) -> Expiry:
        """Return when subscriptions of a namespace expire; warn once if nobody can tell.

        Raises
        ------
        SegmentLogError
            If the admin API does not answer, or there is no such namespace.
        """
        known = self._known.get(namespace)
        if known is not None and self._clock() < known[1]:
            return known[0]
        expiry = self._read(namespace)
        # What has to be mended is asked for each time, so that the mend counts at once.
        if not expiry.minutes:
            self._known[namespace] = expiry, self._clock() + _VALID_SECONDS
        if expiry.minutes is None and namespace not in self._warned:
            self._warned.add(namespace)
            _logger.warning(
                "%s. If they do, the internal subscription of each segment vanishes, and unread "
                "data with it. Rule that out: '%s'",
                expiry,
                expiry.remedy,
            )
        return expiry

    def _read(self, namespace: str) -> Expiry:
        source = f"the namespace {namespace}"
        policy = self._ask(f"/namespaces/{namespace}/subscriptionExpirationTime")
        if policy:
            return _expiry(namespace, policy, source)
        if policy is not None:
            source = f"the brokers' {BROKERS_SETTING}"
            settings = self._ask("/brokers/configuration/runtime")
            # A broker may leave out what it does not know, or does not show.
            minutes = None if settings is None else json.loads(settings).get(BROKERS_SETTING)
            if minutes is not None:
                return _expiry(namespace, minutes, source)
        return Expiry(namespace, None, source)


def _expiry(namespace: str, minutes: str | bytes, source: str) -> Expiry:
    return Expiry(namespace, max(0, int(minutes)), source)
