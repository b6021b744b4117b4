"""`explain` reports facts. It predicts nothing, since it does not know which sensors, sweeps and reconcilers run."""

import re
from dataclasses import replace
from typing import get_args

import pytest

from s3notify_platform.engine.batch.batches import Failing
from s3notify_platform.explain import BatchView
from s3notify_platform.explain.answer import Kind
from s3notify_platform.kernel.errors import RefusedError
from s3notify_platform.protocols.notification_queue import DeadLettered, ShardConsumer, Worker
from s3notify_platform.protocols.source_enumerator import ObjectState
from tests.support.explained import KEY, SLOT, Place, ReadOnly, said
from tests.support.sources import with_settings

PREDICTION = re.compile(r"\b(will|shall|soon|shortly|going to|about to)\b", re.IGNORECASE)


class Refuses(ReadOnly):
    """A bucket that refuses the object."""

    def head(self, key):
        if key == KEY:
            raise RefusedError("403")
        return super().head(key)


def committed(place, **state):
    place.put()
    place.commit(place.state(**state))


def of_settings(place, **settings):
    place.source = with_settings(place.source, **settings)


def refused(place):
    place.put()
    place.reads = Refuses(place.store)


def kept(place):
    committed(place)
    place.store.delete(KEY)
    of_settings(place, on_delete="keep")


def deleted(place):
    committed(place)
    place.store.delete(KEY)
    place.commit(ObjectState(key=KEY, etag="", size=0, gone=True))


def in_batch(place):
    place.put()
    place.open_batch()


def not_chosen(place):
    of_settings(place, exclude="*")
    place.put()


def dead(place):
    place.put()
    worker = Worker(place.queue, serves=lambda topic: topic.name == "orders")
    worker.balance()
    worker.balance()
    for lease in worker.leases:
        consumer = ShardConsumer(worker, lease)
        for entry in consumer.take(10):
            assert isinstance(consumer.failed(entry, "no such endpoint"), DeadLettered)


def rescan(place):
    place.put(queued=False)
    place.backlog.add([SLOT], unqueued=True)


MADE = {
    "committed": committed,
    "rejected": lambda place: committed(place, rejects=9),
    "quarantined": lambda place: committed(place, offset=0, reach_end=False, reason="403"),
    "reading": lambda place: committed(place, reach_end=False),
    "deleted": deleted,
    "writing": lambda place: place.queue.reserve("orders", place.event()),
    "in_batch": in_batch,
    "failing": lambda place: place.put(),
    "waiting": lambda place: place.put(),
    "dead": dead,
    "rescan": rescan,
    "signalled": lambda place: place.put(queued=False),
    "unseen": lambda place: place.store.put(KEY, b"one"),
    "unknown": lambda place: None,
    "kept": kept,
    "not_chosen": not_chosen,
    "refused": refused,
}
"""A function for each verdict, which makes the data that lead to this verdict."""


def failing(place, *, parked):
    return Failing(
        attempts=2,
        reason="no such column",
        parked=parked,
        not_before_ms=place.clock.wall_ms() + 30_000,
        group=0,
    )


@pytest.mark.parametrize("kind", get_args(Kind))
def test_no_answer_predicts(kind):
    """The lines must have no prediction, whether facts are known, unknown, or known in part."""
    place = Place().with_topic(max_attempts=1)
    MADE[kind](place)
    answers = [place.ask(failing=failing(place, parked=True)) if kind == "failing" else place.ask()]
    assert said(answers[0])[0] == kind
    batch = BatchView(
        id="orders-e-9", opened_ms=place.clock.wall_ms(), listing=True, runs=("run-7 (STARTED)",)
    )
    answers += [
        place.ask(on=False, failing=failing(place, parked=False), trace="Traceback"),
        place.ask(ticked_ms=place.clock.wall_ms() - 7_200_000, enumerated="an earlier topic"),
    ]
    answers += [
        replace(answer, **more)
        for answer in answers
        for more in (
            {"topic_exists": False, "topics_cut": True, "batches_cut": True, "rescans": True},
            {
                "topics": tuple(replace(topic, cut=True, notices=()) for topic in answer.topics),
                "signal": None,
            },
            {"batches": (batch, replace(batch, listing=False))},
            {"refused": "the table is incomplete", "newest": 0, "left": 0},
            {"signal_taken": True, "next_batch": "follow"},
            {"signal_taken": False, "next_batch": "everything"},
        )
    ]
    lines = {line for answer in answers for line in answer.lines}
    assert len(lines) > 10
    assert not [line for line in lines if PREDICTION.search(line)]
