"""`s3notify signal KEY...`: signals objects that another program wrote."""

import click

from s3notify_platform.cli.common import SourcePlace, key_with
from s3notify_platform.cli.configured import command, configured
from s3notify_platform.cli.printing import say_wrapped, unbroken
from s3notify_platform.kernel.errors import RefusedError


@command(short_help="Signal objects that another program wrote.")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@key_with("prefix")
def signal(keys: tuple[str, ...], *, place: SourcePlace) -> None:
    """Signal the objects KEY, which were written by a program that does not signal.

    Keys outside of the source's prefix are refused. A source that is not in the YAML is refused if it has neither a
    table nor signals. Prefix and number of slots come from the table's record. With the rights of a writer, which may
    not read this record, both come from the YAML. Cost: 1 GET, 1 PUT for each slot of the keys, and 1 PUT for the root;
    1 HEAD if there is no table.

    \b
    s3notify signal raw/orders/2.jsonl
    s3notify signal raw/orders/2.jsonl --bucket acme-landing --name orders
    """  # noqa: D301 - click's own mark
    from s3notify_platform.kernel.slots import slot_of

    location, identity = place.location(), None
    try:
        identity = location.identity()
        if identity is None and not configured() and not location.is_begun():
            location.check_exists()
    except RefusedError:
        if not configured():
            raise
    wanted = identity.prefix if identity else place.settings["prefix"]
    if outside := [key for key in keys if not key.startswith(wanted)]:
        raise click.UsageError(f"{unbroken(outside[0])}: source {place.name!r} reads keys below {wanted!r}")
    publisher = location.slot_signals()
    publisher.signal(keys, queued=())
    slots = sorted({slot_of(key, location.slots) for key in keys})
    say_wrapped(
        f"signalled {len({*keys})} objects of {place.name!r}, by the root and slots {','.join(map(str, slots))}"
    )
