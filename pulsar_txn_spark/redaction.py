"""What a text shows of a URL: never the user and password in it."""

from __future__ import annotations

_SCHEMES = frozenset(
    {
        *("http", "https", "pulsar", "pulsar+ssl"),
        *("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"),
    }
)
_HIDDEN = "***"


def redacted(text: str) -> str:
    """Return a URL, or what may have been meant as one, without user, password and query.

    Everything in front of the last ``@`` goes, except a scheme that is known. A malformed URL has
    its password where a parser does not look for it.

    Parameters
    ----------
    text : str
        As the user gave it.
    """
    text, question, _ = text.partition("?")
    shown = text + (f"?{_HIDDEN}" if question else "")
    before, at, after = shown.rpartition("@")
    if not at:
        return shown
    scheme, slashes, _ = before.partition("://")
    known = f"{scheme}{slashes}" if slashes and scheme.lower() in _SCHEMES else ""
    return f"{known}{_HIDDEN}@{after}"
