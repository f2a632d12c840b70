"""Asks the fork server for a process, and stays until that ends (:mod:`.fork_server`).

Run as ``python -I -S fork_client.py <address> -m <module> <argument> ...``: the standard library is
all that it has.
"""

from __future__ import annotations

import json
import os
import socket
import sys

address, _, module, *arguments = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as server:
    server.connect(address)
    asked = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ),
        "parent": os.getppid(),
    }
    request = json.dumps(asked).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    server.recv(1)  # it ends with the process
