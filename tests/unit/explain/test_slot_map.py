"""The slot map, as a table and for a terminal."""

from s3notify_platform.explain.slot_map import COLOURS, LEGEND, SlotMap
from s3notify_platform.kernel.slots import Slot

MAP = SlotMap(
    slots=90,
    ages={Slot(0): 5, Slot(1): 86_000, Slot(2): 9e9, Slot(3): 5},
    rows={Slot(0): 1, Slot(1): 10, Slot(2): 11, Slot(3): 10**9, Slot(4): 11, Slot(5): 10**9},
    quarantined={Slot(1): 3, Slot(60): 2},
    in_flight={Slot(2), Slot(3)},
    failing={Slot(3), Slot(89)},
)


def test_a_failing_slot_is_shown_as_failing_even_while_it_is_in_flight() -> None:
    """If a failing slot were shown as in flight, nobody would see the failure."""
    states = MAP.states()
    assert states[:5] == ["under a minute", "under a day", "in flight", "failing", "no commit"]
    assert (len(states), states[89]) == (90, "failing")


def test_characters_show_powers_of_ten_or_a_mark() -> None:
    """Each character must be in the legend."""
    assert MAP.characters()[:7] == "▂▂>!▃█·"
    assert {*MAP.characters()} <= {*LEGEND}


def test_the_legend_of_a_map_has_only_signs_of_the_map() -> None:
    """Otherwise a reader would have to search a long legend for the few signs of the map."""
    assert MAP.legend() == "· no rows, ▂ up to 10 rows, ▃ up to 100 rows, █ more rows, > in flight, ! failing"
    assert SlotMap(slots=2, ages={}, rows={}).legend() == "· no rows"


def test_a_row_of_the_table_fits_into_a_window() -> None:
    """Otherwise Dagster's UI would cut the map at 1500 pixels. The numbers of a row must belong to the same slots as
    its characters.
    """
    first, _, _, last = MAP.table()
    assert first == {
        "slot": "0",
        "map": MAP.characters()[:25],
        "committed": 4,
        "rows": 2 * 10**9 + 33,
        "last_commit": "under a minute",
        "in_flight": 2,
        "failing": 1,
        "in_quarantine": 3,
    }
    assert (last["slot"], last["map"], last["last_commit"]) == ("75", MAP.characters()[75:], "none")
    assert (last["failing"], [row["in_quarantine"] for row in MAP.table()]) == (1, [3, 0, 2, 0])


def test_the_terminal_shows_the_same_characters_in_colours() -> None:
    lines = list(MAP.lines())
    assert [len(line) for line in lines] == [40, 40, 10]
    assert lines[0][0] == ("▂", COLOURS["under a minute"])
    assert lines[0][3] == ("!", COLOURS["failing"])
    assert lines[0][4] == ("▃", COLOURS["no commit"])
