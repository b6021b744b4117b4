"""The circuit of an endpoint: when it opens, who probes, what closes it."""

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


def test_one_probe_at_a_time(circuit, clock, reports):
    """After a wait that grows with each that fails, to its ceiling; the one that is accepted closes."""
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


def test_a_probe_that_is_not_sent_is_free_for_others(circuit, clock):
    """Its shard had nothing to send."""
    circuit.note(GONE, "a")
    probe(circuit, clock)
    circuit.release()
    assert circuit.admit(1).probe


def test_what_was_under_way_makes_no_wait_longer(circuit, clock):
    """A wave that fails counts once; the endpoint's own wish is kept."""
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


def test_refusals_open_it_only_if_nothing_else_comes(circuit):
    """One bad event, however often; or many, with good ones between."""
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
