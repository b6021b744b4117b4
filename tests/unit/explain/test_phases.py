"""The picture of batches' phases: stacked, to scale."""

import xml.etree.ElementTree as ET

from s3notify_platform.explain.phases import BAR, COLOURS, LABEL, stacked
from tests.support.drawn import drawn

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> list[list[tuple[str, float, float]]]:
    """Of each line: colour, begin and width of its phases."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for rect in ET.fromstring(svg).iter(f"{SVG}rect"):
        if rect.find(f"{SVG}title") is not None:
            bar = (rect.attrib["fill"], float(rect.attrib["x"]), float(rect.attrib["width"]))
            found.setdefault(rect.attrib["y"], []).append(bar)
    return list(found.values())


def test_phases_are_stacked_to_one_scale() -> None:
    """Each begins where the one before ends; the longest batch fills the width."""
    svg = drawn(stacked({"long": {"poll": 1.0, "launch": 0.0, "job": 3.0}, "short": {"job": 1.0}}))
    long, short = bars(svg)
    assert long == [
        (COLOURS["poll"], LABEL, BAR / 4),
        (COLOURS["launch"], LABEL + BAR / 4, 0.0),
        (COLOURS["job"], LABEL + BAR / 4, 3 * BAR / 4),
    ]
    assert short == [(COLOURS["job"], LABEL, BAR / 4)]


def test_names_batches_and_phases() -> None:
    """With their seconds; whatever a name holds."""
    svg = drawn(stacked({"orders-<1>": {"plan": 0.25, "tidy & co": 0.5}}))
    texts = [found.text for found in ET.fromstring(svg).iter(f"{SVG}text")]
    assert texts == ["orders-<1>", "0.75 s", "plan", "tidy & co"]
    titles = [found.text for found in ET.fromstring(svg).iter(f"{SVG}title")]
    assert titles == ["plan 0.250 s", "tidy & co 0.500 s"]


def test_nothing_took_any_time() -> None:
    """As by a clock that stands still; and there may be no batch."""
    assert bars(drawn(stacked({"still": {"poll": 0.0}}))) == [[(COLOURS["poll"], LABEL, 0.0)]]
    assert bars(drawn(stacked({}))) == []
