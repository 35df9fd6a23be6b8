"""Answer a request, by its arguments: a status and a JSON object."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from persist_airflow.page.site import Access, Forbidden, Json, Site
from persist_core.clock import SystemClock
from persist_core.errors import InvalidInput, InvalidUri, NotReadable, PersistError, StorageError, UnfitStore
from persist_core.handles.limited import ReadBudget
from persist_core.ids import RandomIds
from persist_core.inspection import rows
from persist_core.inspection.days import MAX_DAYS
from persist_core.inspection.inspector import DEFAULT_COMMITS, MAX_BATCHES, MAX_COMMITS
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


class Arguments:
    """The arguments of a request. Raises `InvalidInput` naming one that is missing or malformed."""

    def __init__(self, given: Mapping[str, Sequence[str]], check: Callable[[], None]) -> None:
        self._given = given
        self.check = check

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._given.get(name, ()))

    def text(self, name: str) -> str:
        """The value, which must be there."""
        found = self.texts(name)
        if len(found) != 1 or not found[0]:
            raise InvalidInput(f"argument {name}: found {len(found)} values, expected 1")
        return found[0]

    def number(self, name: str, default: int, *, least: int = 0, most: int = _MAX_NUMBER) -> int:
        """A whole number between the bounds."""
        text = (self.texts(name) or (str(default),))[0]
        if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:
            raise InvalidInput(f"argument {name}: found {text[:40]!r}, expected an integer in [{least}, {most}]")
        return int(text)

    def time(self, name: str) -> int | None:
        """A time, ISO or an integer; `None` if it is not given."""
        found = self.texts(name)
        return parse_time(found[0], what=name) if found and found[0] else None

    def cut(self) -> Cut:
        """The page of rows to take."""
        return Cut(self.texts("key"), self.number("offset", 0), self.number("limit", 100, least=1, most=MAX_LIMIT))

    def budget(self) -> ReadBudget:
        """The budget and the deadline of the read."""
        return ReadBudget(MAX_BYTES_HELD, self.check)


Endpoint = Callable[[Site, Access, Arguments], Json]


def _shard(given: Arguments) -> tuple[str, str]:
    return given.text("conn_id"), given.text("shard")


def _commits(site: Site, access: Access, given: Arguments) -> Json:
    before = given.number("before", 0) if given.texts("before") else None
    limit = given.number("limit", DEFAULT_COMMITS, least=1, most=MAX_COMMITS)
    return site.commits(access, *_shard(given), before=before, limit=limit)


def _days(site: Site, access: Access, given: Arguments) -> Json:
    limit = given.number("limit", DEFAULT_DAYS, least=1, most=MAX_DAYS)
    return site.days(access, *_shard(given), limit=limit, check=given.check)


def _batches(site: Site, access: Access, given: Arguments) -> Json:
    limit = given.number("limit", MAX_BATCHES, least=1, most=MAX_BATCHES)
    return asdict(site.inspector(access, *_shard(given)).batches(given.text("shard"), limit=limit))


def _storage(site: Site, access: Access, given: Arguments) -> Json:
    return asdict(site.inspector(access, *_shard(given)).storage(given.text("shard"), check=given.check))


def _checkpoints(site: Site, access: Access, given: Arguments) -> Json:
    found = site.inspector(access, *_shard(given)).checkpoints(given.text("shard"))
    return {"checkpoints": [asdict(each) for each in found]}


def _conflicts(site: Site, access: Access, given: Arguments) -> Json:
    found = site.inspector(access, *_shard(given)).conflicts(given.text("shard"))
    return {"conflicts": [asdict(each) for each in found]}


def _rows(site: Site, access: Access, given: Arguments) -> Json:
    client, shard, as_of = site.client(access, *_shard(given)), given.text("shard"), given.time("as_of")
    return asdict(rows.rows_as_of(client, shard, as_of, given.cut(), budget=given.budget()))


def _errors(site: Site, access: Access, given: Arguments) -> Json:
    client, shard, as_of = site.client(access, *_shard(given)), given.text("shard"), given.time("as_of")
    return asdict(rows.errors_as_of(client, shard, as_of, given.cut(), budget=given.budget()))


def _changes(site: Site, access: Access, given: Arguments) -> Json:
    after, through, of_errors = given.time("after"), given.time("as_of"), given.number("errors", 0, most=1) == 1
    if after is None:
        raise InvalidInput("argument after: found nothing, expected a time")
    read = site.client(access, *_shard(given)), given.text("shard"), after, through, given.cut()
    return asdict(rows.changes_between(*read, of_errors=of_errors, budget=given.budget()))


def _differences(site: Site, access: Access, given: Arguments) -> Json:
    conn_id, shard = _shard(given)
    client = site.client(access, conn_id, shard)
    zone = client.state(shard).schemas.zone
    a, b = (
        side_of(client, shard, text, zone=zone, check=lambda other: site.client(access, conn_id, other))
        for text in (given.text("a"), given.text("b"))
    )
    page, found = rows.differences_between(client, a, b, given.cut(), budget=given.budget())
    return asdict(page) | {"said": f"from {a} to {b}: {line_of(found)}"}


ENDPOINTS: dict[str, Endpoint] = {
    "shards": lambda site, access, _: site.shards(access),
    "shard": lambda site, access, given: site.shard(access, *_shard(given)),
    "commits": _commits,
    "days": _days,
    "batches": _batches,
    "storage": _storage,
    "checkpoints": _checkpoints,
    "conflicts": _conflicts,
    "rows": _rows,
    "changes": _changes,
    "differences": _differences,
    "errors": _errors,
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
        return 200, found(site, access, Arguments(given, check))
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
