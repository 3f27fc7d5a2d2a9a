"""An emulator of Google Cloud Storage on the loopback interface.

The addresses of the service are part of TensorFlow. So the emulator is a proxy for HTTPS that answers for these hosts itself,
with a certificate of its own. TensorFlow and Pecan's workers find the proxy in https_proxy, and the certificate in
CURL_CA_BUNDLE.
"""

from __future__ import annotations

import datetime
import http.server
import json
import pathlib
import re
import ssl
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
TOKEN = "a-token"


def write_certificate(directory: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes a certificate for HOSTS, and its key."""
    certificate, key = directory / "gcs.pem", directory / "gcs.key"
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    options = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    command = ["openssl", "req", *options, "-subj", "/CN=emulator", "-addext", f"subjectAltName={names}", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@dataclass
class Object:
    data: bytes
    generation: int
    updated: float

    def metadata(self, bucket: str, name: str) -> dict[str, str]:
        updated = datetime.datetime.fromtimestamp(self.updated, datetime.timezone.utc).isoformat(timespec="milliseconds")
        return {
            "name": name, "bucket": bucket, "size": str(len(self.data)), "generation": str(self.generation), "updated": updated.replace("+00:00", "Z"),
        }


class Emulator:
    """Objects by bucket and name."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        # The names of the objects whose content was read, and the requests without the token.
        self.read: list[str] = []
        self.anonymous: list[str] = []
        # Whether requests for metadata are refused, and what is called after a content is read.
        self.refuses = False
        self.after_read: Callable[[str], None] = lambda name: None
        self._generations = int(time.time() * 1e6)
        self.certificate, key = write_certificate(directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        handler = type("Handler", (_Handler,), {"emulator": self, "context": context})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def environment(self) -> dict[str, str]:
        proxy = f"http://127.0.0.1:{self.server.server_address[1]}"
        return {"https_proxy": proxy, "CURL_CA_BUNDLE": str(self.certificate), "NO_GCE_CHECK": "true", "GOOGLE_AUTH_TOKEN_FOR_TESTING": TOKEN}

    def put(self, url: str, data: bytes, updated: float) -> None:
        """Writes an object: a new generation under its name."""
        bucket, _, name = url.removeprefix("gs://").partition("/")
        self._generations += 1
        self.objects[bucket, name] = Object(data, self._generations, updated)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    emulator: Emulator
    context: ssl.SSLContext

    def do_CONNECT(self) -> None:
        host = self.path.rpartition(":")[0]
        self.send_response(200 if host in HOSTS else 403)
        self.end_headers()
        self.connection = self.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
        self.close_connection = False

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.emulator.anonymous.append(self.path)
        path = urllib.parse.urlsplit(self.path).path
        asked = re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)", path)
        bucket, _, name = asked.expand(r"\1/\2").partition("/") if asked else path[1:].partition("/")
        name = urllib.parse.unquote(name)
        found = self.emulator.objects.get((bucket, name))
        if asked and self.emulator.refuses:
            self.answer(403)
        elif found is None:
            self.answer(404)
        elif asked:
            self.answer(200, json.dumps(found.metadata(bucket, name)).encode())
        else:
            self.answer_content(name, found.data)

    def answer_content(self, name: str, data: bytes) -> None:
        self.emulator.read.append(name)
        first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
        if int(first) < len(data):
            self.answer(206, data[int(first) : int(last) + 1])
        else:
            self.answer(416)
        self.emulator.after_read(name)

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_) -> None:
        """Requests are not logged."""
