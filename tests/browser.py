"""A real headless browser for pages behind a token."""

import contextlib
import http.server
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.head import Head

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1600,1000"),
]
SETTLE = "--virtual-time-budget=15000"  # milliseconds of the page's own clock


def rendered(browser: str, head: Head, page: str, profile: Path) -> str:
    """The document of a page of the Ray dashboard after its scripts have run."""
    with signed_in(head) as address:
        return opened(browser, address + page, profile, "--dump-dom")


def opened(browser: str, url: str, profile: Path, *flags: str) -> str:
    """What the browser prints for a page."""
    command = [browser, *FLAGS, SETTLE, f"--user-data-dir={profile}", *flags, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    return done.stdout


@contextlib.contextmanager
def signed_in(head: Head) -> Iterator[str]:
    """The dashboard for somebody who has entered the token: each request gets it as a header."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {"Authorization": f"Bearer {head.token}"}
            request = urllib.request.Request(head.dashboard + self.path, headers=headers)
            try:
                response = urllib.request.urlopen(request, timeout=120)
            except urllib.error.HTTPError as error:
                response = error
            with response, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                body = response.read()
                self.send_response(response.status)
                self.send_header("Content-Type", response.headers["Content-Type"] or "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
