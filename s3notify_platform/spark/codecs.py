"""Compression and encodings of objects."""


def by_record(key: str, fmt: str, encoding: str) -> bool:  # noqa: ARG001 - comes with the reader
    """Whether an object can be read from its beginning only."""
    return False
