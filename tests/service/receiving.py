"""A receiver of webhooks on a real socket, which records messages and gives the answers that a test wants."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.body)
        return told


class Receiver:
    """Answers the first messages with these statuses, the others with 204.

    A status may also be "hang", which says nothing until the end, or "close", which closes the connection.
    """

    def __init__(self, port: int, answers: Sequence[int | str]) -> None:
        self.received: list[Received] = []
        self.port, self.url = port, f"http://127.0.0.1:{port}/hook?key=1"
        self.end = threading.Event()
        self._answers, self._lock = list(answers), threading.Lock()

    def take(self, received: Received) -> int | str:
        with self._lock:
            self.received.append(received)
            return self._answers.pop(0) if self._answers else 204


@contextmanager
def receiving(*answers: int | str) -> Iterator[Receiver]:
    """Run a receiver on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.take(Received(self.path, headers, body))
            if answer == "hang":
                receiver.end.wait(30)
            if isinstance(answer, int):
                self.send_response(answer)
                self.send_header("content-length", "0")
                if answer // 100 == 3:
                    self.send_header("location", "/elsewhere")
                self.end_headers()
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_address[1], answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.end.set()
        server.shutdown()
        thread.join()
        server.server_close()
