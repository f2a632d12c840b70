from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_pulsar import FakePulsar


@pytest.fixture
def broker() -> Iterator[FakePulsar]:
    """Give a broker of a few topics in this process."""
    broker = FakePulsar()
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a CA, and certificates that it signed for the broker and for a client."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no 'openssl' on the PATH to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    new = [openssl, "req", "-newkey", "rsa:2048", "-nodes"]
    named = ["-subj", "/CN=broker", "-addext", "subjectAltName=DNS:localhost"]
    signed = [*new, "-x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2"]
    for command in (
        [*new, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem"],
        [*signed, *named, "-keyout", "broker.key", "-out", "broker.pem"],
        [*signed, "-subj", "/CN=us", "-keyout", "us.key", "-out", "us.pem"],
    ):
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return folder
