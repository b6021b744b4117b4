"""The requests of a batch to the source's own objects, and the entries that are still in the source's topic."""

from urllib.parse import parse_qs, urlsplit

from tests.contracts.fault_proxy import Answered
from tests.support.site import Site


def of_bucket(site: Site, answered: list[Answered]) -> list[str]:
    """The requests for the source's own objects: LIST, or method and key."""
    found = []
    for request in answered:
        url = urlsplit(request.path)
        query = parse_qs(url.query)
        if "list-type" in query:
            (prefix,) = query.get("prefix", [""])
            if prefix.startswith("raw/") or "raw/".startswith(prefix):
                found.append("LIST")
        elif url.path.startswith(f"/{site.component.bucket}/raw/"):
            found.append(f"{request.method} {url.path.rpartition('/')[2]}")
    return found


def pending(site: Site) -> list[str]:
    """The keys of the entries in the source's topic."""
    return [
        entry.event.key for entry in site.io.clients.queue.entries(site.name, range(site.component.slots))
    ]
