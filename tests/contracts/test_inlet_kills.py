"""Inlets as processes that SIGKILL ends between any two calls: events that were accepted are always in the queue."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import QUEUED, signal_key
from tests.contracts.test_sqs_events import SIGNALS, World

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-of-some-length"


def start(world, dies_at, **more):
    keys = world.server.config("")
    given = {
        "endpoint_url": world.server.endpoint_url,
        "access_key_id": keys.access_key_id,
        "secret_access_key": keys.secret_access_key,
        "bucket": world.bucket,
        "platform": world.platform,
        "signals": SIGNALS,
        "dies_at": dies_at,
        **more,
    }
    command = [sys.executable, "-m", "tests.support.programs.inlet", json.dumps(given)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "RECEIVER_SECRET": SECRET})


def check(world, etags):
    """Asserts that every version is in the queue, and that each slot was signalled after its entries were queued."""
    queued = {(entry.event.key, entry.event.etag) for entry in world.queue.entries("orders", range(1000))}
    assert queued == set(etags.items())
    for key in etags:
        assert world.signals.head(signal_key(SIGNALS, slot_of(key))).metadata == {QUEUED: "1"}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_sqs_inlet_killed_anywhere_loses_nothing(ministack, seed):
    """If the inlet deleted a message before the entry and the signal are stored, a kill after the deletion would
    lose the change.
    """
    dice = random.Random(seed)
    world = World(ministack)
    etags = {f"raw/{n}": world.store.put(f"raw/{n}", b"%d" % n).etag for n in range(60)}
    for _ in range(4):
        process = start(world, dice.randint(2, 8), queue_url=world.url)
        # Messages of an earlier process return after their visibility timeout.
        assert process.wait(60) == -signal.SIGKILL
    assert world.left(), "the inlet was killed with unfinished messages"
    inlet = world.inlet()
    with world.running(inlet):
        world.settle({("put", key) for key in etags}, seconds=60)
    check(world, etags)


def post(address, bucket, key, etag):
    record = {
        "eventSource": "ceph:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": {"key": key, "eTag": etag, "sequencer": "01"}},
    }
    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        headers = {"authorization": f"Bearer {SECRET}"}
        connection.request("POST", "/", json.dumps({"Records": [record]}), headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.thorough
def test_receiver_killed_anywhere_loses_nothing(ministack, tmp_path):
    """Senders repeat an event until its answer is 200. If the receiver answered 200 before the entry and the signal
    are stored, a kill would lose the event, because no sender repeats an accepted event.
    """
    dice = random.Random("receiver")
    world = World(ministack)
    place = tmp_path / "address"
    etags = {f"raw/{n}": f"e{n}" for n in range(60)}
    acknowledged = {}
    over = threading.Event()
    deaths = []

    def supervise():
        while not over.is_set():
            place.unlink(missing_ok=True)
            process = start(world, dice.randint(10, 80) if len(deaths) < 4 else 0, address_file=str(place))
            while process.poll() is None and not over.wait(0.05):
                pass
            if over.is_set():
                process.kill()
                process.wait()
            else:
                deaths.append(process.returncode)

    def send(keys):
        for key in keys:
            while not over.is_set():
                try:
                    status = post(json.loads(place.read_text()), world.bucket, key, etags[key])
                except (OSError, http.client.HTTPException):
                    status = 0
                if status == 200:
                    acknowledged[key] = etags[key]
                    break
                time.sleep(0.1)

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    keys = list(etags)
    senders = [threading.Thread(target=send, args=(keys[n::4],)) for n in range(4)]
    try:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(120)
    finally:
        over.set()
        supervisor.join(30)
    assert deaths == [-signal.SIGKILL] * 4
    assert acknowledged == etags
    check(world, etags)
