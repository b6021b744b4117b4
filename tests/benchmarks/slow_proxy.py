"""A TCP proxy that delays a client's data for some milliseconds, as the network to a region does.

`python -m tests.benchmarks.slow_proxy UPSTREAM_PORT MILLISECONDS` prints its own port, and ends when its parent process
ends.
"""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ROUND_TRIP_MS = 25
"""The round trip between the platform and a store in its region."""

FAR = f"{ROUND_TRIP_MS} ms added to each request by a proxy on the same cores"


@contextmanager
def slow_proxy(url: str) -> Iterator[str]:
    """Runs the proxy to a server in a separate process, with `ROUND_TRIP_MS`. Yields the URL of the proxy."""
    port = url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "tests.benchmarks.slow_proxy", port, str(ROUND_TRIP_MS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def serve(upstream_port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", upstream_port)
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def take() -> None:
            while chunk := await reader.read(1 << 16):
                held.put_nowait((loop.time() + seconds, chunk))
            held.put_nowait((loop.time() + seconds, b""))

        async def pass_on() -> None:
            while True:
                due, chunk = await held.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not chunk:
                    return
                upstream_writer.write(chunk)
                await upstream_writer.drain()

        async def answer() -> None:
            while chunk := await upstream_reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()

        tasks = [asyncio.create_task(step()) for step in (take, pass_on, answer)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        upstream_writer.close()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    logging.disable()  # connections that break at the end of the benchmark are no errors
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]) / 1000))
