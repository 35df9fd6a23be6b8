"""Listings of S3 whose pages are unusual and legal: empty ones before others, and many of what is too young.

And a server that accepts every request and answers none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from persist_core.clock import PATIENCE_MS
from persist_core.errors import Determinate, Indeterminate, StorageError
from persist_core.location import S3Settings, VersionedData
from persist_core.location.s3.client import READ_TIMEOUT_S
from persist_core.location.s3.entry import entry_after, name_of
from persist_core.location.s3.log import S3Logs
from tests.virtual import ManualClock, SeededIds

NOW, LONG_AGO = datetime(2026, 11, 30, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
HOUR_MS = 3_600_000
Page = list[tuple[int, datetime]]  # positions of entries, and when each was written


class Api:
    """As much of a client as a log uses. It lists these pages, whatever was asked."""

    def __init__(self, *pages: Page) -> None:
        self._pages = pages
        self.deleted: list[str] = []

    def list_objects_v2(self, **request: Any) -> dict[str, Any]:
        number = int(request.get("ContinuationToken", 0))
        found = [
            {"Key": f"{request['Prefix']}{name_of(position)}", "LastModified": written}
            for position, written in self._pages[number]
        ]
        return {
            "Contents": found,
            "IsTruncated": number + 1 < len(self._pages),
            "NextContinuationToken": str(number + 1),
            "ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(NOW, usegmt=True)}},
        }

    def delete_objects(self, **request: Any) -> dict[str, Any]:
        self.deleted += [each["Key"].rpartition("-")[2] for each in request["Delete"]["Objects"]]
        return {}


def logs_on(api: Api, monkeypatch: pytest.MonkeyPatch, clock: ManualClock | None = None) -> S3Logs:
    clock = clock or ManualClock()
    logs = S3Logs(S3Settings("bucket"), "_consensus/", clock, SeededIds(1, clock))
    monkeypatch.setattr(logs.client, "_made", (os.getpid(), api))
    return logs


def test_an_empty_page_is_not_the_end_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api([], [], [(7, NOW), (6, NOW)])
    logs = logs_on(api, monkeypatch)
    assert logs.newest_in("k") == 7
    assert logs.erase("k") == 2
    assert api.deleted == ["7", "6"]
    assert logs_on(Api([], []), monkeypatch).newest_in("k") is None


def test_a_sweep_gets_past_a_day_with_many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    young: list[Page] = [[(position, NOW)] for position in range(50, 20, -1)]
    api = Api(*young, [(20, LONG_AGO), (19, LONG_AGO)])
    assert logs_on(api, monkeypatch).sweep("k", 51, HOUR_MS) == 2
    assert api.deleted == ["20", "19"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda logs: logs.newest_in("k"), Determinate),
        (lambda logs: logs.add(entry_after(None, "k", VersionedData(0, b""), "id")), Indeterminate),
    ],
)
def test_a_server_that_never_answers_ends_each_call(
    call: Callable[[S3Logs], object], error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()

    class Silent(Api):
        def wait(self, **_: Any) -> Any:
            clock.sleep_ms(int(READ_TIMEOUT_S * 1000))
            raise ReadTimeoutError(endpoint_url="http://silent")

        list_objects_v2 = get_object = put_object = wait

    with pytest.raises(error):
        call(logs_on(Silent(), monkeypatch, clock))
    assert clock.now_ms() < 2 * PATIENCE_MS
