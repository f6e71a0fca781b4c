"""A connection to the service whose owner decides which bytes come when."""

import socket
import struct
import time
from contextlib import suppress

import httpx


class Connection:
    """A new connection, or one that is open already."""

    def __init__(self, url: str, made: socket.socket | None = None) -> None:
        address = httpx.URL(url)
        self._socket = made or socket.create_connection((address.host, address.port), 30)
        self._unread = b""

    def send(self, *parts: bytes, pause: float = 0.0) -> None:
        for part in parts:
            self._socket.sendall(part)
            time.sleep(pause)

    def offer(self, *parts: bytes, pause: float = 0.0) -> None:
        """Send as much as the server takes."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send(*parts, pause=pause)

    def _read(self) -> bytes:
        """Something of what the server says; nothing once it has closed the connection."""
        try:
            return self._socket.recv(65536)
        except ConnectionResetError:
            return b""

    def _more(self) -> bytes:
        more = self._read()
        assert more, "closed before the answer was complete"
        return more

    def rest(self) -> bytes:
        """All it says until it closes the connection."""
        return self._unread + b"".join(iter(self._read, b""))

    def answer(self) -> httpx.Response:
        """The next answer."""
        while b"\r\n\r\n" not in self._unread:
            self._unread += self._more()
        top, _, body = self._unread.partition(b"\r\n\r\n")
        first, *lines = top.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers.get("content-length", 0))
        while len(body) < length:
            body += self._more()
        self._unread = body[length:]
        return httpx.Response(int(first.split()[1]), headers=headers, content=body[:length])

    def reset(self) -> None:
        """Close it as one that has not read everything does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()
