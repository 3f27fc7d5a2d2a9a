"""An emulator of Amazon S3 on the loopback interface: one bucket, objects that are uploaded at once, and lists.

It has what s3fs asks for if a mount uploads no object in parts. Signatures are not checked.
"""

from __future__ import annotations

import email.utils
import hashlib
import http.server
import threading
import urllib.parse
import xml.sax.saxutils
from dataclasses import dataclass, field

BUCKET = "caches"


@dataclass
class Object:
    data: bytes
    # The x-amz-meta- headers and the type, which the mount stores modes, owners and times in.
    headers: dict[str, str]
    changed: str = field(default_factory=lambda: email.utils.formatdate(usegmt=True))

    @property
    def tag(self) -> str:
        return '"' + hashlib.md5(self.data).hexdigest() + '"'


class Emulator:
    """Objects by name."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        # Set while every request is answered with 403, as after the end of temporary credentials.
        self.refusing = False
        handler = type("Handler", (_Handler,), {"emulator": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def names(self, suffix: str) -> list[str]:
        """The last parts of the objects' names that have this suffix."""
        return sorted(name.rpartition("/")[2] for name in list(self.objects) if name.endswith(suffix))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    emulator: Emulator

    def handle_request(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        bucket, _, name = urllib.parse.unquote(url.path)[1:].partition("/")
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.emulator.refusing:
            self.answer(403)
        elif bucket != BUCKET or query.keys() & {"uploads", "uploadId", "partNumber"}:
            self.answer(501 if bucket == BUCKET else 404)
        elif not name:
            self.answer(200, self.listed(query))
        elif self.command == "PUT":
            self.put(name, body)
        elif self.command == "DELETE":
            self.emulator.objects.pop(name, None)
            self.answer(204)
        else:
            self.get(name)

    do_GET = do_HEAD = do_PUT = do_DELETE = handle_request

    def put(self, name: str, data: bytes) -> None:
        headers = {key: value for key, value in self.headers.items() if key.lower().startswith("x-amz-meta-") or key.lower() == "content-type"}
        copied = urllib.parse.unquote(self.headers.get("x-amz-copy-source", ""))
        if copied:
            source = self.emulator.objects.get(copied.removeprefix("/").partition("/")[2])
            if source is None:
                self.answer(404)
                return
            data = source.data
            if self.headers.get("x-amz-metadata-directive") != "REPLACE":
                headers = source.headers
        made = self.emulator.objects[name] = Object(data, headers)
        result = f"<CopyObjectResult><LastModified>{made.changed}</LastModified><ETag>{made.tag}</ETag></CopyObjectResult>"
        self.answer(200, result.encode() if copied else b"", {"ETag": made.tag})

    def get(self, name: str) -> None:
        found = self.emulator.objects.get(name)
        if found is None:
            self.answer(404)
            return
        headers = {**found.headers, "ETag": found.tag, "Last-Modified": found.changed, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None:
            self.answer(200, found.data, headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        end = min(int(last) + 1, len(found.data)) if last else len(found.data)
        if int(first) >= end:
            self.answer(416)
            return
        self.answer(206, found.data[int(first) : end], {**headers, "Content-Range": f"bytes {first}-{end - 1}/{len(found.data)}"})

    def listed(self, query: dict[str, str]) -> bytes:
        """The names with a prefix, without those behind a further delimiter, of which it names the common beginnings."""
        prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter", ""), query.get("marker", "")
        most = int(query.get("max-keys", 1000))
        found: dict[str, str] = {}
        for name in sorted(self.emulator.objects):
            if not name.startswith(prefix):
                continue
            entry, behind, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name[len(prefix) :], "", "")
            entry = prefix + entry + behind
            if entry <= after or entry in found:
                continue
            item = self.emulator.objects[name]
            key = xml.sax.saxutils.escape(entry)
            found[entry] = (
                f"<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>" if behind else
                f"<Contents><Key>{key}</Key><Size>{len(item.data)}</Size><ETag>{item.tag}</ETag><LastModified>{item.changed}</LastModified></Contents>"
            )
        shown = list(found)[:most]
        more = len(found) > most
        following = f"<NextMarker>{xml.sax.saxutils.escape(shown[-1])}</NextMarker>" if more and shown else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{xml.sax.saxutils.escape(prefix)}</Prefix><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{following}{''.join(found[name] for name in shown)}</ListBucketResult>"
        ).encode()

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, *_) -> None:
        """Requests are not logged."""
