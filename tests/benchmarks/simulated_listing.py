"""A simulated bucket with more objects than a local server can have. The server answers ListObjectsV2, and GET of one
object.

`python -m tests.benchmarks.simulated_listing COUNT MILLISECONDS` prints the server's port. The process ends when its
parent process ends. Each page takes at least MILLISECONDS, as on a real store. The number of an object determines its
key, its ETag, its size, and its body, which has ten records. No signature is checked.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

from s3notify_platform.stores.config import S3Config
from tests.support.spark_options import KEY_ID, SECRET

SIZE = 2048
FOLDER = 10_000
_LAST = "~"
_OBJECT = (
    "<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>&quot;%032x&quot;</ETag><Size>%d</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def listed_key(number: int) -> str:
    return f"in/{number // FOLDER:04d}/{number % FOLDER:04d}.jsonl"


def listed_etag(number: int) -> str:
    return f"{number:032x}"


def listed_body(number: int) -> bytes:
    lines = [b'{"id": %d, "name": "n", "note": "%s"}' % (10 * number + n, b"n" * 150) for n in range(10)]
    return b"\n".join(lines).ljust(SIZE - 1) + b"\n"


@contextmanager
def simulated_listing(count: int, milliseconds: int) -> Iterator[S3Config]:
    """Runs the server in a separate process."""
    command = [sys.executable, "-m", "tests.benchmarks.simulated_listing", str(count), str(milliseconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield S3Config(
                bucket="simulated",
                endpoint_url=f"http://127.0.0.1:{port}",
                access_key_id_env=KEY_ID,
                secret_access_key_env=SECRET,
            )
        finally:
            process.kill()


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # with the default size, 5, Linux would reset further connections


class Listing:
    """`count` objects in the order of their keys."""

    def __init__(self, count: int) -> None:
        self.count = count

    def first_after(self, text: str) -> int:
        """The number of the first object whose key is greater than `text`."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if listed_key(middle) > text:
                high = middle
            else:
                low = middle + 1
        return low

    def page(self, prefix: str, after: str, delimiter: str, limit: int, encoding: str) -> str:
        number = self.first_after(max(after, prefix))
        end = self.first_after(prefix + _LAST)
        objects: list[str] = []
        folders: list[str] = []
        last = ""
        while number < end and len(objects) + len(folders) < limit:
            last = listed_key(number)
            cut = last.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                last = last[: cut + len(delimiter)]
                folders.append(f"<CommonPrefixes><Prefix>{last}</Prefix></CommonPrefixes>")
                last += _LAST
                number = self.first_after(last)
            else:
                objects.append(_OBJECT % (last, number, SIZE))
                number += 1
        more = number < end
        encoded = (
            f"<EncodingType>{encoding}</EncodingType>" if encoding else ""
        )  # the encoding changes none of these keys
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>simulated</Name>'
            f"<Prefix>{prefix}</Prefix><KeyCount>{len(objects) + len(folders)}</KeyCount>"
            f"<MaxKeys>{limit}</MaxKeys>{encoded}<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
            f"{''.join(objects)}{''.join(folders)}</ListBucketResult>"
        )


def serve(count: int, seconds: float) -> None:
    listing = Listing(count)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            due = time.monotonic() + seconds
            asked = {name: of[0] for name, of in parse_qs(urlsplit(self.path).query).items()}
            if "list-type" not in asked:
                self.answer(urlsplit(self.path).path)
                return
            body = listing.page(
                asked.get("prefix", ""),
                asked.get("continuation-token") or asked.get("start-after", ""),
                asked.get("delimiter", ""),
                int(asked.get("max-keys", "1000")),
                asked.get("encoding-type", ""),
            ).encode()
            time.sleep(max(0.0, due - time.monotonic()))
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def answer(self, path):
            folder, name = path.removesuffix(".jsonl").split("/")[-2:]
            number = int(folder) * FOLDER + int(name)
            self.send_response(200)
            self.send_header("ETag", f'"{listed_etag(number)}"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(SIZE))
            self.end_headers()
            self.wfile.write(listed_body(number))

    server = _Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]) / 1000)
