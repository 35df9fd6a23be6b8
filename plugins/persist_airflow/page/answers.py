"""Answer a request, by its arguments: a status and a JSON object."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from persist_airflow.page.site import Access, Forbidden, Json, Site
from persist_core.clock import SystemClock
from persist_core.errors import InvalidInput, InvalidUri, NotReadable, PersistError, StorageError, UnfitStore
from persist_core.handles.client import PersistClient
from persist_core.handles.limited import ReadBudget
from persist_core.ids import RandomIds
from persist_core.inspection import rows
from persist_core.inspection.days import MAX_DAYS
from persist_core.inspection.facts import RowsPage
from persist_core.inspection.inspector import DEFAULT_COMMITS, MAX_COMMITS, Inspector
from persist_core.inspection.rows import MAX_BYTES_HELD, MAX_LIMIT, Cut
from persist_core.maintenance.differences import line_of
from persist_core.protocol.compare import side_of
from persist_core.time_text import parse_time

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_MAX_NUMBER = 2**63 - 1
DEFAULT_DAYS = 120
_STATUS: tuple[tuple[type[PersistError], int], ...] = ((InvalidInput, 400), (NotReadable, 404), (StorageError, 503))

IDS = RandomIds(SystemClock())
log = logging.getLogger(__name__)


class Asked:
    """The question of a user to the site. Raises `InvalidInput` naming an argument that is missing or malformed."""

    def __init__(
        self, site: Site, access: Access, given: Mapping[str, Sequence[str]], check: Callable[[], None]
    ) -> None:
        self.site, self.access, self._given, self.check = site, access, given, check

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._given.get(name, ()))

    def text(self, name: str) -> str:
        """The value, which must be there."""
        found = self.texts(name)
        if len(found) != 1 or not found[0]:
            raise InvalidInput(f"argument {name}: found {len(found)} values, expected 1")
        return found[0]

    def number(self, name: str, default: int, *, least: int = 0, most: int = _MAX_NUMBER) -> int:
        text = (self.texts(name) or (str(default),))[0]
        if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:
            raise InvalidInput(f"argument {name}: found {text[:40]!r}, expected an integer in [{least}, {most}]")
        return int(text)

    def time(self, name: str) -> int | None:
        """A time as users write it, in the time zone of the collection; `None` if it is not given."""
        found = self.texts(name)
        if not found or not found[0]:
            return None
        return parse_time(found[0], what=name, zone=self.zone, now_ms=self.client.clock.now_ms())

    def limit(self, default: int, most: int) -> int:
        return self.number("limit", default, least=1, most=most)

    def cut(self) -> Cut:
        return Cut(self.texts("key"), self.number("offset", 0), self.limit(100, MAX_LIMIT))

    def budget(self) -> ReadBudget:
        return ReadBudget(MAX_BYTES_HELD, self.check)

    @property
    def place(self) -> tuple[Access, str, str]:
        """Who asks, the connection and the shard."""
        return self.access, self.text("conn_id"), self.shard

    @property
    def shard(self) -> str:
        return self.text("shard")

    @property
    def inspector(self) -> Inspector:
        return self.site.inspector(*self.place)

    @cached_property
    def client(self) -> PersistClient:
        return self.site.client(*self.place)

    @cached_property
    def zone(self) -> str:
        return self.client.state(self.shard).schemas.zone


def _commits(asked: Asked) -> Json:
    before = asked.number("before", 0) if asked.texts("before") else None
    return asked.site.commits(*asked.place, before=before, limit=asked.limit(DEFAULT_COMMITS, MAX_COMMITS))


def _changes(asked: Asked) -> Json:
    after, through, of_errors = asked.time("after"), asked.time("as_of"), asked.number("errors", 0, most=1) == 1
    if after is None:
        raise InvalidInput("argument after: found nothing, expected a time")
    read = asked.client, asked.shard, after, through, asked.cut()
    return asdict(rows.changes_between(*read, of_errors=of_errors, budget=asked.budget()))


def _differences(asked: Asked) -> Json:
    access, conn_id, shard = asked.place
    client = asked.client
    a, b = (
        side_of(client, shard, text, zone=asked.zone, check=lambda other: asked.site.client(access, conn_id, other))
        for text in (asked.text("a"), asked.text("b"))
    )
    page, found = rows.differences_between(client, a, b, asked.cut(), budget=asked.budget())
    return asdict(page) | {"said": f"from {a} to {b}: {line_of(found)}"}


def _rows(asked: Asked, read: Callable[..., RowsPage]) -> Json:
    return asdict(read(asked.client, asked.shard, asked.time("as_of"), asked.cut(), budget=asked.budget()))


ENDPOINTS: dict[str, Callable[[Asked], Json]] = {
    "shards": lambda asked: asked.site.shards(asked.access),
    "shard": lambda asked: asked.site.shard(*asked.place),
    "commits": _commits,
    "days": lambda asked: asked.site.days(*asked.place, limit=asked.limit(DEFAULT_DAYS, MAX_DAYS), check=asked.check),
    "batches": lambda asked: asdict(asked.inspector.batches(asked.shard)),
    "storage": lambda asked: asdict(asked.inspector.storage(asked.shard, check=asked.check)),
    "checkpoints": lambda asked: {"checkpoints": [asdict(each) for each in asked.inspector.checkpoints(asked.shard)]},
    "conflicts": lambda asked: {"conflicts": [asdict(each) for each in asked.inspector.conflicts(asked.shard)]},
    "rows": lambda asked: _rows(asked, rows.rows_as_of),
    "changes": _changes,
    "differences": _differences,
    "errors": lambda asked: _rows(asked, rows.errors_as_of),
}
READS = ("rows", "changes", "differences", "errors")  # endpoints that read contents, not facts


def answer(
    site: Site, access: Access, endpoint: str, given: Mapping[str, Sequence[str]], check: Callable[[], None]
) -> tuple[int, str]:
    """The HTTP status and the body as JSON. An error's body is `{"error": {"kind", "message"}}`.

    `check` is called between two batches of rows, commits or objects, and may raise. The addresses of stores are for
    users who may read the connection. What a store answers may hold more than its address, so all others get a
    reference to the server's log.
    """
    status, body = _answer(site, access, endpoint, given, check)
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return status, site.without_addresses(access, text)


def _answer(
    site: Site, access: Access, endpoint: str, given: Mapping[str, Sequence[str]], check: Callable[[], None]
) -> tuple[int, Json]:
    found = ENDPOINTS.get(endpoint)
    if found is None:
        return 404, problem("not_found", f"no endpoint {endpoint[:40]!r}; expected one of {', '.join(ENDPOINTS)}")
    try:
        return 200, found(Asked(site, access, given, check))
    except Forbidden as error:
        return 403, problem("forbidden", f"your roles do not allow {error}, or it does not exist")
    except PersistError as error:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        is_about_the_store = status >= 500 or isinstance(error, InvalidUri | UnfitStore)
        if not is_about_the_store:
            return status, problem(error.kind, str(error))
        reference = IDS.uuid7()
        log.warning("page for shards: %s: %s (reference %s)", error.kind, error, reference)
        names = given.get("conn_id", ())
        if names and all(map(access.reads_connection, names)):
            return status, problem(error.kind, str(error))
        text = f"the store failed or has damaged data; the API server's log says more under {reference}"
        return status, problem(error.kind, text)


def problem(kind: str, message: str) -> Json:
    return {"error": {"kind": kind, "message": message}}
