"""An inlet as a separate process: `python -m … JSON`. The process sends itself SIGKILL at a given call.

Calls of the record store, of the keyspace and of SQS are counted together. If the given number is odd, the process dies
before this call. If the given number is even, the process dies after the call was applied.
"""

import json
import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path

from s3notify_platform.channels.inlets.http_inlet import HttpInlet, HttpInletSettings
from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.channels.inlets.pull_inlet import PullInlet
from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import S3Config, SqsConfig
from s3notify_platform.stores.open_store import open_store, queue_records
from s3notify_platform.stores.sqs import SqsQueue


class Mortal:
    """A wrapper of an object. The calls of all wrapped objects are counted together. The process dies at the call whose
    number is `dies_at`.
    """

    calls = count(1)
    dies_at = 0

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, method):
        function = getattr(self._inner, method)
        if not callable(function):
            return function

        def call(*args, **kwargs):
            fatal = next(self.calls) == self.dies_at
            if fatal and self.dies_at % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if method == "scan":
                result = iter(list(result))
            if fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call


def main(given):
    Mortal.dies_at = given["dies_at"]
    keys = {name: given[name] for name in ("endpoint_url", "access_key_id", "secret_access_key")}
    platform = S3Config(bucket=given["platform"], **keys)
    queue = NotificationQueue(Mortal(queue_records(platform)))
    publisher = Publisher(Mortal(open_store(platform)), prefix=given["signals"], queued=True)
    intake = Intake(queue, [Keyspace(prefix="", publisher=publisher)], bucket=given["bucket"])
    if "queue_url" in given:
        sqs = Mortal(SqsQueue(SqsConfig(queue_url=given["queue_url"], **keys)))
        inlet = PullInlet(sqs, intake, name="sqs", wait_seconds=0, visibility_seconds=3, gather=10)
    else:
        inlet = HttpInlet(HttpInletSettings(secret_envs=["RECEIVER_SECRET"], port=0), intake)

        def tell():
            inlet.ready.wait()
            place = Path(given["address_file"])
            place.with_suffix(".new").write_text(json.dumps(inlet.address))
            place.with_suffix(".new").rename(place)

        threading.Thread(target=tell, daemon=True).start()
    inlet.run(threading.Event(), lambda _: None)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
