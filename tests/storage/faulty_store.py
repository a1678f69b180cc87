"""A proxy in front of an S3 server that answers some requests otherwise, as stores are known to."""

import contextlib
import dataclasses
import http.client
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

BUCKET = "audits"


@dataclasses.dataclass
class Fault:
    """Answers some requests otherwise.

    Attributes:
        method: regular expression of the HTTP methods of these requests.
        path: regular expression that is searched in path and query.
        action: an error code such as "503 SlowDown" that is answered in place of the store's;
            "store, then CODE" forwards the request first; "cut" drops half of the answer's body,
            "hide" removes scores from a list, "error" answers with an error and status 200, "half"
            with half of the body as if it were all, and "line" takes `seconds` for a megabyte of
            the body, in either direction.
        skip: requests that are forwarded as they are, before the first one that is not.
        count: requests that are answered otherwise.
        seconds: time of "line".
    """

    method: str
    path: str
    action: str
    skip: int = 0
    count: int = 1
    seconds: float = 0.0

    def applies(self, method: str, path: str) -> bool:
        """Counts a request, and returns whether it is answered otherwise."""
        if not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.count -= 1
        return self.count >= 0


@dataclasses.dataclass
class FaultyStore:
    """An S3 address, the faults that wait, and the requests that came in."""

    address: str
    faults: list[Fault] = dataclasses.field(default_factory=list)
    requests: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def _without_scores(entry: re.Match[bytes]) -> bytes:
    """Returns an object's entry in a list, nothing for a score file."""
    return b"" if b"scores" in entry[0] else entry[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    store: FaultyStore
    upstream: tuple[str, int]
    turn: threading.Lock


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None: ...

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = urllib.parse.unquote(self.path)
        with self.server.turn:
            self.server.store.requests.append((self.command, path))
            due = [f for f in self.server.store.faults if f.applies(self.command, path)]
        action = due[0].action if due else ""
        if action == "line":
            time.sleep(due[0].seconds * length / 1e6)
        if re.match(r"\d|error", action):
            self._refuse(action.replace("error", "200 InternalError"))
            return
        connection = http.client.HTTPConnection(*self.server.upstream)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            headers = answer.getheaders()
        if action.startswith("store, then "):
            self._refuse(action.removeprefix("store, then "))
            return
        if action == "hide":
            contents = rb"<Contents>.*?</Contents>"
            content = re.sub(contents, _without_scores, content, flags=re.DOTALL)
        if action == "half":
            content = content[: len(content) // 2]
        pause = due[0].seconds * len(content) / 1e6 if action == "line" else 0.0
        self._answer(answer.status, headers, content, action == "cut", pause)

    def _refuse(self, error: str) -> None:
        status, _, code = error.partition(" ")
        text = f"<Error><Code>{code}</Code><Message>refused for a test</Message></Error>"
        self._answer(int(status), [("Content-Type", "application/xml")], text.encode())

    def _answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        content: bytes,
        cut: bool = False,
        pause: float = 0.0,
    ) -> None:
        self.send_response(status)
        length = str(len(content))
        for name, value in headers:
            lower = name.lower()
            if lower == "content-length" and self.command == "HEAD":
                length = value
            elif lower not in ("content-length", "transfer-encoding", "connection", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        time.sleep(pause)
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _handle  # noqa: N815 (names of the base class)


@contextlib.contextmanager
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """Yields an empty bucket; clients of this process find it by their environment."""
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 server")
    upstream = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    upstream.start()
    host, port = upstream.get_host_and_port()
    server = _Server(("127.0.0.1", 0), _Handler)
    server.upstream, server.turn = (host, port), threading.Lock()
    server.store = FaultyStore(f"s3://{BUCKET}/runs")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    try:
        connection = http.client.HTTPConnection(host, port)
        connection.request("POST", "/moto-api/reset")  # objects of the test before this one
        connection.getresponse().read()
        connection.request("PUT", f"/{BUCKET}")
        connection.getresponse().read()
        connection.close()
        yield server.store
    finally:
        server.shutdown()
        server.server_close()
        upstream.stop()
