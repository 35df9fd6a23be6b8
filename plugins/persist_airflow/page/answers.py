"""From a request's arguments to a status and a JSON object: the same for every framework that serves the page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from persist_airflow.page.site import Access, Forbidden, Json, Site
from persist_core.errors import InvalidInput, NotReadable, PersistError, StorageError
from persist_core.inspection.days import MAX_DAYS
from persist_core.inspection.inspector import DEFAULT_COMMITS, MAX_BATCHES, MAX_COMMITS
from persist_core.inspection.rows import MAX_LIMIT, Cut
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

log = logging.getLogger(__name__)


class Arguments:
    """The arguments of a request. Raises `InvalidInput` naming one that is missing or malformed."""

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self._given = given

    def texts(self, name: str) -> tuple[str, ...]:
        """All values."""
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
        """Which page of rows."""
        return Cut(self.texts("key"), self.number("offset", 0), self.number("limit", 100, least=1, most=MAX_LIMIT))


Endpoint = Callable[[Site, Access, Arguments], Json]


def _commits(site: Site, access: Access, given: Arguments) -> Json:
    before = given.number("before", 0) if given.texts("before") else None
    limit = given.number("limit", DEFAULT_COMMITS, least=1, most=MAX_COMMITS)
    return site.commits(access, *_shard(given), before=before, limit=limit)


def _batches(site: Site, access: Access, given: Arguments) -> Json:
    return site.batches(access, *_shard(given), limit=given.number("limit", MAX_BATCHES, least=1, most=MAX_BATCHES))


def _days(site: Site, access: Access, given: Arguments) -> Json:
    return site.days(access, *_shard(given), limit=given.number("limit", DEFAULT_DAYS, least=1, most=MAX_DAYS))


def _changes(site: Site, access: Access, given: Arguments) -> Json:
    after = given.time("after")
    if after is None:
        raise InvalidInput("argument after: found nothing, expected a time")
    of_errors = given.number("errors", 0, most=1) == 1
    return site.changes(access, *_shard(given), after, given.time("as_of"), given.cut(), of_errors=of_errors)


def _shard(given: Arguments) -> tuple[str, str]:
    return given.text("conn_id"), given.text("shard")


ENDPOINTS: dict[str, Endpoint] = {
    "shards": lambda site, access, _: site.shards(access),
    "shard": lambda site, access, given: site.shard(access, *_shard(given)),
    "commits": _commits,
    "days": _days,
    "batches": _batches,
    "storage": lambda site, access, given: site.storage(access, *_shard(given)),
    "checkpoints": lambda site, access, given: site.checkpoints(access, *_shard(given)),
    "conflicts": lambda site, access, given: site.conflicts(access, *_shard(given)),
    "rows": lambda site, access, given: site.rows(access, *_shard(given), given.time("as_of"), given.cut()),
    "changes": _changes,
    "errors": lambda site, access, given: site.errors(access, *_shard(given), given.time("as_of"), given.cut()),
}


def answer(site: Site, access: Access, endpoint: str, given: Mapping[str, Sequence[str]]) -> tuple[int, Json]:
    """The HTTP status and the body. An error's body is `{"error": {"kind", "message"}}`."""
    found = ENDPOINTS.get(endpoint)
    if found is None:
        return 404, problem("not_found", f"no endpoint {endpoint[:40]!r}; expected one of {', '.join(ENDPOINTS)}")
    try:
        return 200, found(site, access, Arguments(given))
    except Forbidden as error:
        return 403, problem("forbidden", f"your roles do not allow {error}, or it does not exist")
    except PersistError as error:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        if status >= 500:
            log.warning("page for shards: %s: %s", error.kind, error)
        return status, problem(error.kind, str(error))


def problem(kind: str, message: str) -> Json:
    """The body of an error."""
    return {"error": {"kind": kind, "message": message}}
