"""The admin REST API of a broker as an operator uses it, past the client of the package."""

from __future__ import annotations

import json
from typing import Any

import urllib3


def path_of(topic: str) -> str:
    """Return the path of a topic such as ``persistent://public/default/t``."""
    return topic.replace("://", "/")


class AdminRest:
    """Sends requests, each of which must succeed."""

    def __init__(self, admin_url: str) -> None:
        self._url = f"{admin_url}/admin/v2/"
        self._pool = urllib3.PoolManager()

    def __call__(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer as JSON, None if it is empty."""
        answer = self._pool.request(
            method,
            self._url + path,
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status < 300, (method, path, answer.status, answer.data)
        return json.loads(answer.data) if answer.data else None

    def unload(self, topic: str) -> None:
        """Make the broker load a topic again, which closes its current ledger."""
        self("PUT", f"{path_of(topic)}/unload")

    def close(self) -> None:
        self._pool.clear()
