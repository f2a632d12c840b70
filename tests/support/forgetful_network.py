"""A network in front of a server that forgets connections, as balancers and NAT gateways do."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from dataclasses import dataclass

from pulsar_txn_spark.backports import Self


@dataclass(eq=False)
class _Flow:
    """A connection through the network."""

    client: socket.socket
    server: socket.socket
    forgotten: bool = False

    def close(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # else a thread would go on waiting for it
            end.close()

    def reset(self) -> None:
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()


class ForgetfulNetwork:
    """Passes on what comes, until it forgets the connections that there are.

    Parameters
    ----------
    port : int
        Of the server.
    resets : bool
        Whether what is sent on a forgotten connection is answered by a reset, else by silence.
    """

    def __init__(self, port: int, *, resets: bool) -> None:
        self._server = ("127.0.0.1", port)
        self._resets = resets
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.flows: list[_Flow] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for flow in self.flows:
            flow.close()

    def forget(self) -> None:
        """Forget all connections that there are; neither end is told."""
        for flow in self.flows:
            flow.forgotten = True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                flow = _Flow(client, socket.create_connection(self._server))
                self.flows.append(flow)
                threading.Thread(target=self._pass_on, args=(flow,), daemon=True).start()

    def _pass_on(self, flow: _Flow) -> None:
        other = {flow.client: flow.server, flow.server: flow.client}
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            while True:
                for end in select.select(list(other), [], [])[0]:
                    data = end.recv(65_536)
                    if not data:
                        flow.close()
                        return
                    if not flow.forgotten:
                        other[end].sendall(data)
                    elif self._resets:
                        flow.reset()
                        return
