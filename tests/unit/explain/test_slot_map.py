"""The slot map, as an image and for a terminal."""

import base64
import re
import struct
import zlib

from s3notify_platform.explain.slot_map import COLOURS, ROWS, SlotMap
from s3notify_platform.kernel.slots import Slot

MAP = SlotMap(
    slots=90,
    ages={Slot(0): 5, Slot(1): 86_000, Slot(2): 9e9, Slot(3): 5},
    rows={Slot(0): 1, Slot(1): 10, Slot(2): 11, Slot(3): 10**9},
    in_flight={Slot(2), Slot(3)},
    failing={Slot(3), Slot(89)},
)


def pixels(svg: str) -> list[list[list[str]]]:
    """The colours of the pictures in it, line by line."""
    return [_decoded(base64.b64decode(found)) for found in re.findall(r"data:image/png;base64,([^\"]+)", svg)]


def _decoded(png: bytes) -> list[list[str]]:
    chunks, at = {}, 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size]) == (zlib.crc32(kind + body),)
        chunks[kind], at = body, at + 12 + size
    wide, high = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines, palette = zlib.decompress(chunks[b"IDAT"]), chunks[b"PLTE"]
    return [
        [f"#{palette[3 * n : 3 * n + 3].hex()}" for n in lines[y * (wide + 1) + 1 : (y + 1) * (wide + 1)]]
        for y in range(high)
    ]


def test_states() -> None:
    """What is wrong goes before what is going on, and that before its age."""
    states = MAP.states()
    assert states[:5] == ["under a minute", "under a day", "in flight", "failing", "no commit"]
    assert (len(states), states[89]) == (90, "failing")


def test_rows() -> None:
    """By powers of ten."""
    assert MAP.magnitudes()[:5] == [1, 1, 2, len(ROWS) - 1, 0]


def test_the_image() -> None:
    """A pixel for each slot, 40 in a line, and a legend of the states that occur; small enough for metadata."""
    by_age, by_rows = pixels(MAP.svg())
    assert [len(line) for line in by_age] == [40, 40, 40]
    assert by_age[0][:4] == [COLOURS[state] for state in MAP.states()[:4]]
    assert by_age[2][9] == COLOURS["failing"]
    assert by_rows[0][:5] == [ROWS[n] for n in MAP.magnitudes()[:5]]
    assert "failing (2)" in MAP.svg()
    assert "under a week" not in MAP.svg()
    many = SlotMap(
        slots=1000,
        ages={Slot(n): 10.0 ** (n % 8) for n in range(1000)},
        rows={Slot(n): n for n in range(1000)},
    )
    assert len(many.markdown()) < 6000


def test_the_terminal() -> None:
    """The same cells, higher with more rows."""
    lines = list(MAP.lines())
    assert [len(line) for line in lines] == [40, 40, 10]
    assert lines[0][0] == ("▂", COLOURS["under a minute"])
    assert lines[0][3] == ("█", COLOURS["failing"])
    assert lines[0][4] == ("·", COLOURS["no commit"])
