"""A mirror, as a contributor would add it: this file, and an entry in `table.mirrors.MIRRORS`."""

from typing import ClassVar

from s3notify_platform.table.mirrors import Mirrored

TOY = "tests.support.toy_mirror:ToyMirror"


class ToyMirror:
    """A catalog in this process's memory: the newest version and the rows of each table, by its URL."""

    tables: ClassVar[dict[str, tuple[int, int]]] = {}
    fails: ClassVar[bool] = False

    def show(self, table: Mirrored) -> None:
        if ToyMirror.fails:
            raise RuntimeError("the catalog is unavailable")
        shown = (table.snapshot.version, table.snapshot.rows)
        ToyMirror.tables[table.url] = max(shown, ToyMirror.tables.get(table.url, shown))
