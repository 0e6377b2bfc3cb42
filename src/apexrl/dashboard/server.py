"""Serves the page over HTTP. Nothing that is asked changes anything."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from apexrl.config.placement import host_and_port
from apexrl.dashboard import page, run_views
from apexrl.dashboard.answers import MOST_ASKED, Answers, UnknownQuestionError, UnknownRunError
from apexrl.errors import ConfigError, LinkError

if TYPE_CHECKING:
    from apexrl.dashboard.player import Player

MOST_CONNECTIONS: Final = 64
"""At once; more are told to come back."""
LONGEST_REQUEST: Final = 1 << 20
"""Bytes: a comparison names its runs in the address."""
_BOUNDARY: Final = "picture"
_LOOK_SECONDS: Final = 1 / 30  # a player shows no more
_COOKIE: Final = "apexrl_dashboard"
_TYPES: Final = {"js": "text/javascript", "css": "text/css"}
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; media-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_App = Callable[[Any, Any, Any], Awaitable[None]]


def listen(where: str) -> socket.socket:
    """A socket that listens at ``[HOST:]PORT``; the host is 127.0.0.1 unless given, port 0 takes a free one.

    Raises:
        ConfigError: ``where`` is none.
        LinkError: nobody can listen there.
    """
    try:
        host, port = host_and_port(where if ":" in where else f":{where}")
    except ValueError:
        raise ConfigError(f"--address {where!r} is no [HOST:]PORT (an IPv6 address stands in brackets)") from None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        raise LinkError(
            f"nobody can listen at --address {where}: {error.strerror or error}. Choose another port, or 0 for any "
            "free one"
        ) from None


def is_this_machine(listening: socket.socket) -> bool:
    """Whether only programs of this machine can connect."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def url_of(listening: socket.socket, token: str = "") -> str:
    """Where a browser finds the page."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/" + (f"?token={token}" if token else "")


def serve(answers: Answers, listening: socket.socket, token: str = "") -> None:
    """Answer until Ctrl-C.

    Args:
        token: without which nothing is answered; empty: none is needed.
    """
    server = uvicorn.Server(
        uvicorn.Config(
            app(answers, token),
            log_level="error",
            access_log=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=1,
            server_header=False,
            http="h11",
            h11_max_incomplete_event_size=LONGEST_REQUEST,
            ws="none",
            lifespan="off",
        )
    )
    server.run(sockets=[listening])


def app(answers: Answers, token: str = "") -> _App:
    """The page and its answers as an ASGI application."""

    async def whole(request: Request) -> Response:
        return Response(page.served(), media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in page.FILES:
            return PlainTextResponse("there is no such file", 404)
        return _tagged(request, page.text_of(name).encode(), _TYPES[name.rpartition(".")[2]])

    async def answer(request: Request) -> Response:
        question, asked = request.path_params["question"], dict(request.query_params)
        if any(len(value) > MOST_ASKED for name, value in asked.items() if name != "runs"):
            return PlainTextResponse("a parameter is too long", 400)
        try:
            found = await run_in_threadpool(answers.answer, question, asked)
        except UnknownRunError:
            return PlainTextResponse("there is no such run", 404)
        except UnknownQuestionError:
            return PlainTextResponse("there is no such question", 404)
        body = json.dumps(found, allow_nan=False, separators=(",", ":")).encode()
        return _tagged(request, body, "application/json")

    async def film(request: Request) -> Response:
        asked = request.query_params
        try:
            run = answers.run(asked.get("run", ""))
        except UnknownRunError:
            return PlainTextResponse("there is no such run", 404)
        path = await run_in_threadpool(run_views.film, run, asked.get("file", ""))
        if path is None:
            return PlainTextResponse("there is no such film", 404)
        return FileResponse(path, media_type="video/mp4")

    async def watched(request: Request) -> Response:
        if answers.player is None:
            return PlainTextResponse("nothing is played: start it with apexrl watch RUN", 404)
        kind = f"multipart/x-mixed-replace; boundary={_BOUNDARY}"
        return StreamingResponse(_pictures(answers.player), media_type=kind, headers={"cache-control": "no-store"})

    routes = [
        Route("/", whole),
        Route("/static/{name:path}", static),
        Route("/answers/{question}", answer),
        Route("/film", film),
        Route("/watched", watched),
    ]
    return _Guard(Starlette(routes=routes), token)


async def _pictures(player: Player) -> AsyncIterator[bytes]:
    """Pictures as they are played, each in place of the one before, until the browser goes away."""
    number = 0
    while True:
        newer, picture = player.newest_picture()
        if newer == number:
            await asyncio.sleep(_LOOK_SECONDS)  # waiting in threads, many who look would leave none for answers
        else:
            number = newer
            head = f"--{_BOUNDARY}\r\ncontent-type: image/jpeg\r\ncontent-length: {len(picture)}\r\n\r\n"
            yield head.encode() + picture + b"\r\n"


def _tagged(request: Request, body: bytes, kind: str) -> Response:
    """The body, or word that the browser has it already."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


class _Guard:
    """Lets requests in. Without a token, those that name this machine, so that no page of another site can ask under a
    name of its own; with a token, those that have it, in the address or in a cookie."""

    def __init__(self, inner: _App, token: str) -> None:
        self._inner, self._token = inner, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] not in ("GET", "HEAD"):
            refusal, cookie = "only GET is answered", ""
        elif self._token:
            refusal, cookie = self._checked(scope, headers)
        else:
            refusal, cookie = "" if _names_this_machine(headers.get("host", "")) else "wrong host", ""
        if refusal:
            await PlainTextResponse(refusal, 403, headers=_HEADERS)(scope, receive, send)
            return

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = dict(_HEADERS) | ({"set-cookie": cookie} if cookie else {})
                pairs = [(name.encode(), value.encode("latin-1")) for name, value in more.items()]
                message = {**message, "headers": [*message["headers"], *pairs]}
            await send(message)

        await self._inner(scope, receive, answer)

    def _checked(self, scope: Any, headers: dict[str, str]) -> tuple[str, str]:
        """Why a request is refused, and the cookie that lets the next ones in."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and hmac.compare_digest(given.encode(), self._token.encode()):
            return "", f"{_COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        except CookieError:
            kept = None
        if kept is not None and hmac.compare_digest(kept.value.encode(), self._token.encode()):
            return "", ""
        return "open the address with its token, as apexrl dashboard has printed it", ""


def _names_this_machine(host: str) -> bool:
    name = (host.rsplit(":", 1)[0] if not host.endswith("]") else host).lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
