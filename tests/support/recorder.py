"""An HTTP endpoint in a separate process. The endpoint records posts, and can fail or refuse posts on demand.

The endpoint accepts some thousands of posts a second, so it does not limit a measurement. The posts come from the
platform's outlet, or from Ceph's own notifications.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Self

REFUSE = 0
"""A value in place of a status. If this value is set, the process stops listening, and aborts all connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A post that was answered with 2xx. `seconds`: its time by the machine's monotonic clock."""

    path: str
    seconds: float
    body: str

    @property
    def keys(self) -> list[str]:
        """The object keys in the post, as they were sent."""
        return [record["s3"]["object"]["key"] for record in json.loads(self.body)["Records"]]


class Recorder:
    """The process of the endpoint, which runs as long as the `with` block. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.recorder"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.kill()

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def answer(self, status: int) -> None:
        """Sets the answer to all later posts: a status, or `REFUSE`."""
        self._ask("answer", status)

    def posts(self, path: str = "") -> list[Post]:
        """The accepted posts to this path, in order."""
        return [
            Post(path=path, seconds=seconds, body=body)
            for found, seconds, body in self._ask("posts")
            if found == "/" + path
        ]

    def posted_keys(self, path: str = "") -> list[str]:
        """The keys of all accepted records, including duplicates."""
        return [key for post in self.posts(path) for key in post.keys]

    def tries(self) -> int:
        """The number of posts, accepted or not."""
        return int(self._ask("tries"))

    def wait_posts(self, count: int, *, seconds: float = 60.0) -> None:
        """Waits until `count` posts were accepted, on all paths together."""
        assert self._ask("wait posts", count, seconds), f"fewer than {count} posts within {seconds:g} s"

    def wait(self, distinct: int, path: str = "", *, seconds: float = 60.0) -> float:
        """Waits until posts with this number of distinct keys were accepted. Returns the time of the last of these
        posts.

        Fails after `seconds`.
        """
        came = self._ask("wait", distinct, "/" + path, seconds)
        assert came is not None, (
            f"{len(set(self.posted_keys(path)))} of {distinct} keys came within {seconds:g} s"
        )
        return float(came)

    def _ask(self, *command: Any) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


class _Server:
    """The server that runs in the process."""

    def __init__(self) -> None:
        self.status = 200
        self.tried = 0
        self.accepted: list[tuple[str, float, str]] = []
        self.distinct: dict[str, dict[str, float]] = {}
        self.news = asyncio.Condition()
        self.open: set[asyncio.StreamWriter] = set()
        self.listener: asyncio.Server | None = None
        self.port = 0

    async def listen(self) -> None:
        self.listener = await asyncio.start_server(self.serve, "127.0.0.1", self.port, backlog=512)
        self.port = self.listener.sockets[0].getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while await self.one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        self.tried += 1
        if self.status == 200:
            await self.accept(first.split(" ")[1], body.decode())
        writer.write(b"HTTP/1.1 %d answered\r\nContent-Length: 0\r\n\r\n" % self.status)
        await writer.drain()
        return fields.get("connection", "").lower() != "close"

    async def accept(self, path: str, body: str) -> None:
        now = time.monotonic()
        self.accepted.append((path, now, body))
        known = self.distinct.setdefault(path, {})
        with contextlib.suppress(ValueError, KeyError, TypeError):
            for record in json.loads(body)["Records"]:
                known.setdefault(record["s3"]["object"]["key"], now)
        async with self.news:
            self.news.notify_all()

    async def do(self, name: str, *arguments: Any) -> Any:
        match name:
            case "answer":
                (self.status,) = arguments
                if self.status == REFUSE and self.listener is not None:
                    self.listener.close()
                    self.listener = None
                    for writer in tuple(self.open):
                        writer.transport.abort()
                elif self.status != REFUSE and self.listener is None:
                    await self.listen()
            case "posts":
                return self.accepted
            case "tries":
                return self.tried
            case "wait posts":
                count, seconds = arguments
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds), self.news:
                        return await self.news.wait_for(lambda: len(self.accepted) >= count)
                return False
            case "wait":
                count, path, seconds = arguments
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds), self.news:
                        await self.news.wait_for(lambda: len(self.distinct.get(path, ())) >= count)
                        return max(self.distinct.get(path, {"": time.monotonic()}).values())
        return None


async def _main() -> None:
    server = _Server()
    await server.listen()
    print(server.port, flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await server.do(*json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
