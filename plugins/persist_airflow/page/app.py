"""The FastAPI app of Airflow 3.

Airflow does not authenticate the apps of plugins. So every route here but the static files asks Airflow's own
dependency for the user (session cookie or bearer token), and `Access` asks the auth manager what the user may see.
"""

from __future__ import annotations

from collections import defaultdict
from urllib.parse import urlencode

from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from persist_airflow.page.answers import HEADERS, READS, STATIC, answer, problem
from persist_airflow.page.lanes import Busy, ClientGone, Lane, TooSlow
from persist_airflow.page.site import Access, Site


class _WithHeaders:
    """Adds the security headers to every response of an app, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store" if "/api/" in scope["path"] else "no-cache")
            await send(message)

        await self._app(scope, receive, send_with_headers)


def make_app() -> FastAPI:
    """The app. It opens no location before the first request."""
    app = FastAPI(title="Persist shards", docs_url=None, redoc_url=None, openapi_url=None)
    site = Site()
    reads = Lane("persist-rows", run=2, wait=4, seconds=20)  # each read may take a few hundred MB
    facts = Lane("persist-facts", run=4, wait=60, seconds=60)
    app.add_middleware(_WithHeaders)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/")
    async def page(request: Request) -> Response:
        try:
            await get_user(request, None, None)
        except HTTPException:
            return RedirectResponse(_login(request))
        return FileResponse(STATIC / "index.html", media_type="text/html")

    @app.get("/api/{endpoint}")
    async def api(endpoint: str, request: Request, user: GetUserDep) -> Response:
        given: dict[str, list[str]] = defaultdict(list)
        for name, value in request.query_params.multi_items():
            given[name].append(value)
        lane = reads if endpoint in READS else facts
        try:
            status, body = await lane.do(request, lambda check: answer(site, Access(user), endpoint, given, check))
        except Busy:
            text = "other reads take all places of this server; try again in a few seconds"
            return JSONResponse(problem("busy", text), 429, {"Retry-After": "2"})
        except TooSlow:
            text = f"no answer in {lane.seconds:.0f} s; give a key or a shorter interval, or run `persist maintain`"
            return JSONResponse(problem("too_slow", text), 503)
        except ClientGone:
            return Response(status_code=499)
        return Response(body, status, media_type="application/json")

    return app


def _login(request: Request) -> str:
    """Airflow's login page, relative to this one, and from there back to here."""
    query = f"?{request.url.query}" if request.url.query else ""
    return f"../api/v2/auth/login?{urlencode({'next': request.url.path + query})}"
