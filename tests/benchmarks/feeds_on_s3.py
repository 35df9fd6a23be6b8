"""The cost of finding the new files of a bucket: requests, seconds, CPU seconds.

    python -m tests.benchmarks.feeds_on_s3 10000 1000000

The bucket is a stand-in: a server in another process that makes the answers to listings up, page by page, in the order
and with the fields of S3, after `--delay-ms`. A real server takes hours to be filled with a million objects.
"""

from __future__ import annotations

import argparse
import bisect
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import perf_counter, process_time, sleep  # noqa: TID251 - a benchmark measures real time
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from persist_core.config.collection import CollectionConfig
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.sources.feeds import feed_of
from persist_core.sources.files import FileSource, Freeze
from persist_core.time_text import DAY_MS, format_time, parse_time

DAYS = 365
END_MS = parse_time("2026-01-01")
PAGE = 1000


def names_of(count: int) -> list[str]:
    """As many names over a year of days, sorted."""
    by_day = -(-count // DAYS)
    days = [END_MS - (DAYS - day) * DAY_MS for day in range(DAYS)]
    return [f"feed/{date(day)}/part-{number:07}.parquet" for day in days for number in range(by_day)][:count]


def date(time_ms: int) -> str:
    return format_time(time_ms)[:10].replace("-", "/")


class Listing(BaseHTTPRequestHandler):
    """ListObjectsV2, and HeadObject of any name."""

    names: Sequence[str] = ()
    delay_s = 0.0
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        sleep(self.delay_s)
        self.send_response(200)
        for name, value in {"Content-Length": "1000", "ETag": f'"{"0" * 32}"',
                            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        sleep(self.delay_s)
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        prefix, after = asked.get("prefix", ""), asked.get("continuation-token") or asked.get("start-after", "")
        first = bisect.bisect_right(self.names, after) if after else bisect.bisect_left(self.names, prefix)
        first = max(first, bisect.bisect_left(self.names, prefix))
        last = bisect.bisect_left(self.names, prefix + "\U0010ffff")
        page = self.names[first : min(first + PAGE, last)]
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{'0' * 32}&quot;</ETag><Size>1000</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for name in page
        )
        more = first + PAGE < last
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        body = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
            f"<KeyCount>{len(page)}</KeyCount><MaxKeys>{PAGE}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{entries}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def serve(count: int, delay_s: float, port: Any) -> None:
    """The server's process."""
    Listing.names, Listing.delay_s = names_of(count), delay_s
    server = ThreadingHTTPServer(("127.0.0.1", 0), Listing)
    port.send(server.server_address[1])
    server.serve_forever()


def measure(count: int, delay_s: float, folder: Path) -> None:
    """Print the first listing, a whole one when all files are known, and one by date."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(count, delay_s, theirs), daemon=True)
    server.start()
    try:
        _measure(count, f"http://127.0.0.1:{ours.recv()}", folder)
    finally:
        server.terminate()
        server.join()


def _measure(count: int, endpoint: str, folder: Path) -> None:
    body = {
        "name": "orders",
        "source": {"path": "s3://bucket/feed/{date:%Y/%m/%d}/*.parquet", "format": "parquet", "connection": "x"},
        "key": "id",
        "columns": {"id": "bigint"},
        "delete": "none",
        "limits": {"max_files": 10_000_000},
    }
    config = CollectionConfig.model_validate(body)
    uri = f"s3://bucket?endpoint={endpoint}&access_key_id=x&secret_access_key=y"
    location = OpenLocation(FileBlob(folder), MemConsensus(), {"PERSIST_CONNECTION_X": uri})

    def listed(what: str, consumed: Any, lower: int, until: int) -> Freeze:
        source = FileSource(config, location.blob, feed_of(location, config))
        began, cpu = perf_counter(), process_time()
        freeze = source.freeze(consumed, lower=lower, until=until)
        took = f"{perf_counter() - began:.1f} s, {process_time() - cpu:.1f} s of CPU"
        sys.stdout.write(f"{count} objects, {what}: {freeze.requests} LIST, {took}, {len(freeze.frozen.files)} new\n")
        return freeze

    first = listed("nothing known", None, 0, END_MS)
    source = FileSource(config, location.blob, feed_of(location, config))
    consumed = source.advance(None, first.frozen, era=0)
    listed("all known, whole", consumed, END_MS - DAY_MS, END_MS)
    listed("all known, by date", consumed, END_MS - DAY_MS + 1, END_MS)
    location.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[10_000, 1_000_000])
    parser.add_argument("--delay-ms", type=float, default=20.0, help="of each answer, beside its making")
    given = parser.parse_args()
    for each in given.counts:
        with tempfile.TemporaryDirectory() as made:
            measure(each, given.delay_ms / 1000, Path(made))
