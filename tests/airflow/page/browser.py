"""Servers and a browser for the tests of the page. Screenshots: `.cache/screenshots`.

The browser is the machine's Chromium, driven by Playwright. Without one these tests are skipped, and the closing list
of real parts names it as missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from persist_airflow.embedded.ports import accepts_connections, free_port
from tests import real_parts
from tests.airflow.page.screen import BASE, FACTS_TIMEOUT_MS
from tests.servers.lifeline import ServerFolder, end, wait_until
from tests.test_house import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.airflow.page.conftest import Browse


@pytest.fixture(scope="module")
def url(airflow_api: Any) -> Iterator[str]:
    """The API app on a port of 127.0.0.1; the page is also there below the base path."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = Starlette(routes=[Mount(BASE, airflow_api), Mount("/", airflow_api)])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=20)
    listener.close()


@pytest.fixture(scope="module")
def api_server(airflow_api: Any) -> Iterator[str]:
    """A real `airflow api-server`, configured for a base path: the whole UI is below it, and nothing elsewhere."""
    del airflow_api  # it has made the database and the users, and set the environment
    port = free_port()
    url = f"http://127.0.0.1:{port}{BASE}"
    environment = {**os.environ, "AIRFLOW__API__BASE_URL": url, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    folder = ServerFolder("api-server")
    with (folder.path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *f"-m airflow api-server --host 127.0.0.1 --port {port} --workers 1".split()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    (folder.path / "api.pid").write_text(f"{process.pid}\n")
    try:
        wait_until(lambda: accepts_connections(port), what="airflow api-server", timeout_ms=120_000)
        yield url
    finally:
        end(process, signal.SIGTERM)
        folder.remove()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        real_parts.missing("browser", "no chromium on PATH (Debian: apt-get install chromium)")
        pytest.skip("no chromium on PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        real_parts.used("browser", f"Chromium {browser.version}")
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any, url: str, browse: Browse) -> Iterator[Page]:
    """A tab with an admin's session. The test fails if the page has logged an error or opened a dialog."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    token = browse("ADMIN").cookies["_token"]
    context.add_cookies([{"name": "_token", "value": token, "url": url}])
    tab = context.new_page()
    tab.set_default_timeout(FACTS_TIMEOUT_MS)
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: problems.append(dialog.message))
    tab.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    yield tab
    context.close()
    assert problems == []
