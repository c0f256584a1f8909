"""A web server on loopback, for the demo's coder to fetch from."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Site:
    """What is served: ``/index.json`` names the files, ``/<name>`` is the text of each."""

    url: str
    files: dict[str, str]


@contextmanager
def serve_files(root: Path) -> Iterator[Site]:
    """Serve the text files below ``root`` on a free port of 127.0.0.1 while the block runs."""
    paths = [path for path in sorted(root.rglob("*.*")) if path.suffix in {".md", ".py", ".yaml"}]
    files = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    pages = {f"/{name}": text for name, text in files.items()}
    pages["/index.json"] = json.dumps({"files": list(files)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(pages)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield Site(f"http://127.0.0.1:{server.server_port}", files)
        finally:
            server.shutdown()
            thread.join()


def _handler_of(pages: dict[str, str]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = pages.get(self.path)
            body = (text or "no such page").encode()
            self.send_response(200 if text is not None else 404)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing: the screen shows the calls."""

    return Handler
