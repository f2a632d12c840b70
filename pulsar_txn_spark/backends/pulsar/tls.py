"""TLS for the binary protocol and the admin API: the options ``tls*`` of one kind."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_txn_spark.backends.pulsar.passthrough import Credentials
from pulsar_txn_spark.errors import OptionError


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Which certificates to trust and to present.

    Parameters
    ----------
    trust_file, certificate_file, key_file : str, optional
        Own CA, and the client's certificate.
    verify_host, insecure : bool
        Whether the name in the server's certificate counts; whether none is checked at all.
    """

    trust_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify_host: bool = True
    insecure: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TlsSettings:
        """Read what :func:`~.passthrough.parse_passthrough` returns."""
        credentials: Credentials = options["credentials"]
        certificate = options.get("tls_certificate_file_path")
        key = options.get("tls_private_key_file_path")
        if credentials.method == "tls":
            certificate, key = credentials["tlsCertFile"], credentials["tlsKeyFile"]
        return cls(
            trust_file=options.get("tls_trust_certs_file_path"),
            certificate_file=certificate,
            key_file=key,
            verify_host=options.get("tls_validate_hostname", True),
            insecure=options.get("tls_allow_insecure_connection", False),
        )

    def fingerprint(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return what changes when a file is renewed, in place or by another one."""
        paths = (self.trust_file, self.certificate_file, self.key_file)
        return tuple(_fingerprint(path) for path in paths if path is not None)

    def context(self) -> ssl.SSLContext:
        """Return how to speak TLS.

        Raises
        ------
        OptionError
            If a file cannot be read or is no certificate.
        """
        try:
            context = ssl.create_default_context(cafile=self.trust_file)
            context.check_hostname = self.verify_host and not self.insecure
            if self.insecure:
                context.verify_mode = ssl.CERT_NONE
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except OSError as failed:  # ssl.SSLError is one
            raise OptionError(
                f"the TLS files of pulsar.client.* or pulsar.admin.* cannot be used: {failed}; "
                "expected PEM files (tlsTrustCertsFilePath, tlsCertificateFilePath, tlsKeyFilePath)"
            ) from None
        return context


def _fingerprint(path: str) -> tuple[int, int, int] | None:
    try:
        stat = Path(path).stat()  # of what a link leads to: Kubernetes renews a secret by its link
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
