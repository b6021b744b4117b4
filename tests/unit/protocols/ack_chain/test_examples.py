"""The examples in the packages' docstrings run, and print the results that the docstrings show."""

from textwrap import dedent

import pytest

from s3notify_platform.protocols import ack_chain
from s3notify_platform.protocols.ack_chain import AckChains, Acked, shared
from s3notify_platform.protocols.ack_chain.shared import SharedChains
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore


def example(package):
    (code,) = [part for part in package.__doc__.split("\n\n") if part.startswith("    ")][:1]
    return dedent(code)


@pytest.mark.parametrize("package", [ack_chain, shared])
def test_examples_run_and_have_at_most_ten_lines(package, capsys):
    """Otherwise a reader who copies the example would get an error or another result."""
    code = example(package)
    assert len(code.splitlines()) <= 10
    names = {name: getattr(ack_chain, name) for name in ack_chain.__all__}
    names |= {"S3Config": S3Config, "DynamoConfig": DynamoConfig, "ObjectRecordStore": ObjectRecordStore}
    names |= {
        "AckChains": AckChains,
        "SharedChains": SharedChains,
        "S3ObjectStore": lambda _: MemoryObjectStore(),
    }
    names |= {"XorAckTable": lambda config, partition_key: MemoryRecordStore()}
    exec(code, names)
    said = capsys.readouterr().out
    if package is ack_chain:
        assert said == "('report',)\nall done\n"
    else:
        assert names["chains"].state("job").status == "acked"
        assert names["chains"].state("batch").missing == ("2",)


@pytest.mark.parametrize("kind", [AckChains, SharedChains])
def test_an_open_chain_never_reports_zero_missing(kind):
    """Otherwise a chain of raw stamps would report 0 missing stamps while it is still open."""
    chains = kind(MemoryRecordStore())
    first, second = ack_chain.new_stamp(), ack_chain.new_stamp()
    chains.create("t", ack_chain.xor(first, second))
    outcome = chains.stamp("t", first)
    assert outcome == ack_chain.Stamped(missing=None)
    assert "missing=0" not in repr(outcome)
    assert chains.stamp("t", second) == Acked()
