"""The circuit of an endpoint: it opens, admits one probe at a time, and closes."""

import pytest

from s3notify_platform.channels.delivery.circuit import REFUSED_MAX, Circuit
from s3notify_platform.channels.delivery.push import Delivered, Down, Rejected
from tests.support.outlets import GONE, SILENT


@pytest.fixture
def reports():
    return []


@pytest.fixture
def circuit(clock, reports):
    return Circuit(clock, report=reports.append, base_seconds=1.0, ceiling_seconds=8.0)


def probe(circuit, clock):
    for _ in range(200):
        if (admission := circuit.admit(10)).limit:
            return admission
        clock.now += 0.1
    raise AssertionError("no probe")


def test_an_open_circuit_admits_one_probe_at_a_time(circuit, clock, reports):
    """Otherwise a dead endpoint would get all requests, or a repaired endpoint would stay unused for longer
    than 8 s.
    """
    assert circuit.admit(10).limit == 10
    circuit.note(GONE, "a")
    waits = []
    for _ in range(10):
        before = clock.now
        admission = probe(circuit, clock)
        waits.append(clock.now - before)
        assert (admission.limit, admission.probe) == (1, True)
        assert circuit.admit(10).limit == 0
        circuit.note(GONE, "a", probe=True)
    assert max(waits) <= 8.1
    assert max(waits) > 2.0
    circuit.note(Delivered(), "a", probe=probe(circuit, clock).probe)
    assert circuit.admit(10).limit == 10
    assert len(reports) == 2
    assert reports[0] == "down: refused"
    assert reports[1].startswith("delivers again, after ")


def test_a_released_probe_can_be_sent_by_another_shard(circuit, clock):
    """Otherwise a shard without entries would keep the probe, and the endpoint would count as down for all shards."""
    circuit.note(GONE, "a")
    probe(circuit, clock)
    circuit.release()
    assert circuit.admit(1).probe


def test_answers_to_requests_in_flight_do_not_lengthen_the_wait(circuit, clock):
    """Otherwise the failures of 30 parallel requests would count as 30 outages. A `Retry-After` of the endpoint,
    however, must lengthen the wait.
    """
    for _ in range(30):
        circuit.note(SILENT, "a")
    before = clock.now
    probe(circuit, clock)
    assert clock.now - before <= 2.1
    circuit.release()
    circuit.note(Down(error="HTTP 429", reached=False, retry_after_seconds=15.0), "a")
    before = clock.now
    probe(circuit, clock)
    assert clock.now - before >= 14.9


def test_refusals_open_the_circuit_only_without_acceptances_in_between(circuit):
    """Otherwise one bad event, or many bad events among good events, would stop the delivery of all events."""
    for _ in range(3 * REFUSED_MAX):
        circuit.note(Rejected(error="x"), "bad")
    for n in range(3 * REFUSED_MAX):
        circuit.note(Rejected(error="x"), f"bad {n}")
        circuit.note(Delivered(), "good")
    assert not circuit.is_open
    for n in range(REFUSED_MAX):
        assert not circuit.is_open
        circuit.note(Rejected(error="x"), f"bad {n}")
    assert circuit.is_open
