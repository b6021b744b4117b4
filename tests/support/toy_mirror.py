"""An example of a mirror. To add a real mirror, a contributor writes a file like this one, and an entry in
`table.mirrors.MIRRORS`.
"""

from typing import ClassVar

from s3notify_platform.table.mirrors import Mirrored

TOY = "tests.support.toy_mirror:ToyMirror"


class ToyMirror:
    """A catalog in the memory of this process. `tables` has each table's newest version and number of rows, by the
    table's URL.
    """

    tables: ClassVar[dict[str, tuple[int, int]]] = {}
    fails: ClassVar[bool] = False

    def show(self, table: Mirrored) -> None:
        if ToyMirror.fails:
            raise RuntimeError("the catalog is unavailable")
        shown = (table.snapshot.version, table.snapshot.rows)
        ToyMirror.tables[table.url] = max(shown, ToyMirror.tables.get(table.url, shown))
