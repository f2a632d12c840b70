"""On which addresses the servers of a test listen."""

from __future__ import annotations

import ipaddress

import psutil


def listened_beyond_loopback() -> list[str]:
    """Return sockets of this process's descendants that other machines could reach.

    Returns
    -------
    list of str
        ``address:port`` and the program, for each one.
    """
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            sockets, program = process.net_connections("tcp"), process.name()
        except psutil.NoSuchProcess:  # it has ended in between
            continue
        found += [
            f"{one.laddr.ip}:{one.laddr.port} of {program}"
            for one in sockets
            if one.status == psutil.CONN_LISTEN and not _is_loopback(one.laddr.ip)
        ]
    return found


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
