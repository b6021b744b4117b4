"""A worker of warm runs, without Dagster and Spark. The name of a run's job decides the result of the run."""

import os
import signal
import sys

said = os.fdopen(int(sys.argv[1]), "wb", buffering=0)


def answer(text: str) -> None:
    said.write(text.encode() + b"\n")


def main() -> None:
    import json

    start = json.loads(sys.stdin.buffer.readline())
    if start["server_id"] == "broken":
        sys.exit(3)
    answer('{"ready": true}')
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if "terminate" in order:
            sys.exit(0)
        match order["job"]:
            case "dies":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "stuck":
                signal.pause()
            case "waits":
                continue
            case job:
                grown = 1 << 40 if job == "leaks" else 0
                answer(json.dumps({"done": order["run"], "bytes": grown}))


main()
