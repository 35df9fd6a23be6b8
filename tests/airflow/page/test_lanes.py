"""Nothing that users of the page ask for holds up Airflow's own routes; reads have few places, an end, and a stop."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient
from starlette.requests import Request

from persist_airflow.page import app, site
from persist_airflow.page.answers import answer
from persist_airflow.page.lanes import Busy, Check, ClientGone, Lane, Stop, TooSlow
from persist_core.clock import SystemClock
from persist_core.errors import Indeterminate
from persist_core.inspection import rows
from persist_core.inspection.inspector import Inspector
from tests.airflow.page.conftest import Browse
from tests.servers.lifeline import wait_until

CLOCK = SystemClock()
PARALLEL = 60
PLACES = 6  # for reads: two run and four wait
AIRFLOWS_OWN = "/api/v2/dags"
ROWS = "/persist/api/rows?conn_id=persist_default&shard=customers"


class SlowRead:
    """Stands in for a read of a large shard from a slow store: until `released`, with checks of its budget."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self.begun = threading.Event()
        self.stopped = threading.Event()
        self.released = threading.Event()

    def __call__(self, client: Any, *args: Any, **options: Any) -> Any:
        self.begun.set()
        for _ in range(1_200):
            if self.released.wait(0.05):
                break
            if "budget" in options:
                try:
                    options["budget"].check()
                except Stop:
                    self.stopped.set()
                    raise
        return self._real(client, *args, **options)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowRead]:
    read = SlowRead(rows.rows_as_of)
    monkeypatch.setattr(rows, "rows_as_of", read)
    yield read
    read.released.set()


@pytest.fixture
def server(airflow_api: Any) -> Iterator[int]:
    """Airflow's API app with the page, in a real server; its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(airflow_api, log_level="error", lifespan="off"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    running.should_exit = True
    thread.join(20)
    listening.close()


@pytest.fixture
def ask(server: int, browse: Browse) -> Callable[[str], tuple[int, dict[str, str]]]:
    """A GET as a viewer: its status and its headers."""
    token = browse("VIEWER").cookies["_token"]

    def ask(path: str) -> tuple[int, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", server, timeout=120)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}

    return ask


def test_many_reads_do_not_hold_up_airflow(ask: Any, slow: SlowRead) -> None:
    """Before, Airflow's route waited for a thread until reads were done."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        reads = [pool.submit(ask, ROWS) for _ in range(PARALLEL)]
        try:
            wait_until(lambda: sum(each.done() for each in reads) >= PARALLEL - PLACES, what="answers to the others")
            beside = [ask(AIRFLOWS_OWN) for _ in range(10)]
            going = [each for each in reads if not each.done()]
        finally:
            slow.released.set()
        answers = [each.result() for each in reads]
    assert {status for status, _ in beside} == {200}
    assert len(going) == PLACES, "Airflow's own route waited for reads"
    assert {each.result()[0] for each in going} == {200}
    refused = [headers for status, headers in answers if status == 429]
    assert len(refused) == PARALLEL - PLACES
    assert {headers["retry-after"] for headers in refused} == {"2"}


def test_a_client_that_leaves_ends_its_read(ask: Any, server: int, browse: Browse, slow: SlowRead) -> None:
    token = browse("VIEWER").cookies["_token"]
    with socket.create_connection(("127.0.0.1", server)) as leaving:
        request = f"GET {ROWS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        leaving.sendall(request.encode())
        assert slow.begun.wait(20)
    assert slow.stopped.wait(15), "the read went on for no one"  # its own time would end after 20 s
    slow.released.set()
    assert ask(ROWS)[0] == 200


@pytest.mark.parametrize("endpoint", ["days", "storage"])
def test_days_and_storage_end_at_their_deadline(
    airflow_api: Any, browse: Browse, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    """The work itself ends, and not only the wait for it."""
    real_state, stopped = Inspector.state, threading.Event()

    def slow_state(inspector: Inspector, shard: str) -> Any:
        CLOCK.sleep_ms(600)
        return real_state(inspector, shard)

    def watched(*args: Any) -> Any:
        try:
            return answer(*args)
        except Stop:
            stopped.set()
            raise

    assert airflow_api  # its auth manager knows the user
    monkeypatch.setattr(Inspector, "state", slow_state)
    monkeypatch.setattr(app, "answer", watched)
    monkeypatch.setattr(app, "Lane", lambda name, **options: Lane(name, **{**options, "seconds": 0.2}))
    with TestClient(app.make_app(), cookies=browse("VIEWER").cookies) as client:
        found = client.get(f"/api/{endpoint}?conn_id=persist_default&shard=customers")
    assert (found.status_code, found.json()["error"]["kind"]) == (503, "too_slow")
    assert stopped.wait(20)


class Client(Request):
    """A request whose client leaves when `left` is set."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        super().__init__({"type": "http"}, self._leave)

    async def _leave(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}


def until_stopped(check: Check) -> None:
    for _ in range(2_000):
        CLOCK.sleep_ms(5)
        check()
    raise AssertionError("not stopped")


def test_a_lane_gives_up_after_its_time_and_has_its_place_again() -> None:
    async def check() -> None:
        lane = Lane("t", run=1, wait=0, seconds=0.2)
        with pytest.raises(TooSlow):
            await lane.do(Client(), until_stopped)
        for _ in range(400):
            with suppress(Busy):  # until the thread has seen that it is to stop
                assert await lane.do(Client(), lambda _: "free") == "free"
                return
            await asyncio.sleep(0.005)
        raise AssertionError("its place is still taken")

    asyncio.run(check())


def test_a_lane_refuses_what_has_no_place() -> None:
    async def check() -> None:
        lane = Lane("t", run=2, wait=4, seconds=20)
        clients = [Client() for _ in range(6)]
        going = [asyncio.ensure_future(lane.do(client, until_stopped)) for client in clients]
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await lane.do(Client(), lambda _: "never")
        for client in clients:
            client.left.set()
        ended = await asyncio.gather(*going, return_exceptions=True)
        assert [type(each) for each in ended] == [ClientGone] * 6

    asyncio.run(check())


@pytest.mark.parametrize("endpoint", ["rows", "shard", "shards"])
def test_a_failed_store_tells_a_viewer_no_address(
    browse: Browse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, endpoint: str
) -> None:
    secret = "connection to store-7.internal (10.1.2.3) as writer failed"

    def fails(*_: Any, **__: Any) -> Any:
        raise Indeterminate(secret)

    monkeypatch.setattr(rows, "rows_as_of", fails)
    monkeypatch.setattr(Inspector, "description", fails)
    monkeypatch.setattr(Inspector, "summaries", fails)
    monkeypatch.setattr(site, "FRESH_MS", -1)
    params = {} if endpoint == "shards" else {"conn_id": "persist_default", "shard": "customers"}
    with caplog.at_level("WARNING"):
        answer = browse("VIEWER").get(f"/persist/api/{endpoint}", params=params)
    assert "store-7" not in answer.text + str(answer.headers)
    found = answer.json()
    error = found["locations"][0]["error"] if endpoint == "shards" else found["error"]
    assert error["kind"] == "storage_indeterminate"
    assert "the API server's log" in error["message"]
    assert secret in caplog.text
    assert endpoint == "shards" or error["message"].rpartition(" ")[2] in caplog.text
    assert secret in browse("ADMIN").get(f"/persist/api/{endpoint}", params=params).text


def test_a_viewer_gets_no_address_in_a_text_of_facts(browse: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the error of a shard that is damaged, which names the object and where it is."""
    real = Inspector.commits

    def with_address(inspector: Any, *args: Any, **options: Any) -> Any:
        page = real(inspector, *args, **options)
        object.__setattr__(page.commits[0], "error", f"part x in {inspector.client.blob.uri} is missing")
        return page

    monkeypatch.setattr(Inspector, "commits", with_address)
    params = {"conn_id": "persist_default", "shard": "customers"}
    viewer, admin = (browse(role).get("/persist/api/commits", params=params).text for role in ("VIEWER", "ADMIN"))
    assert "part x in file:///" in admin
    assert "file:/" not in viewer
    assert "part x in (the store of persist_default) is missing" in viewer
