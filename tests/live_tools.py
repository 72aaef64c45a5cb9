"""Real live tools for tests: an HTTP server on loopback, an MCP server over stdio, and questions that they answer."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cacherl.environment_settings import EnvSection
from envs.base import PlannedCall, ToolSpec
from envs.live.http import HttpTool, HttpToolkit
from envs.live.mcp import McpToolkit
from envs.live.source import LiveSource, LiveTask

CITIES = {"bern": 12, "rome": 21, "oslo": 4}
#: Where the environments of this module find their server; no server is needed where only recordings are served.
WEATHER_URL = "TEST_WEATHER_URL"
MCP_SERVER = Path(__file__).with_name("mcp_server.py")


class Weather(ThreadingHTTPServer):
    """GET /warmth/{city}?unit=… of a few cities.

    Attributes:
        requests, cookies: paths asked for, and the cookies with them.
        script: statuses to answer with first.
        body: what to answer whatever is asked for.
        drip_s: seconds after every byte.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[str] = []
        self.cookies: list[str | None] = []
        self.body: bytes | None = None
        self.drip_s = 0.0
        self.script: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Weather

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.cookies.append(self.headers["Cookie"])
        if self.server.body is not None:
            self._send(200, self.server.body)
            return
        if self.server.script and (status := self.server.script.pop(0)) != 200:
            self._answer(status, {})
            return
        parts = urlsplit(self.path)
        city = unquote(parts.path.removeprefix("/warmth/"))
        unit = parse_qs(parts.query).get("unit", ["celsius"])[0]
        if city not in CITIES:
            self._answer(404, {"detail": "no such city"})
        else:
            self._answer(200, {"city": city, unit: CITIES[city]})

    def _answer(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "session=1")
        self.end_headers()
        with suppress(ConnectionError):  # whoever asked has heard enough
            for part in [bytes([byte]) for byte in body] if self.server.drip_s else [body]:
                self.wfile.write(part)
                time.sleep(self.server.drip_s)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def weather_server() -> Iterator[Weather]:
    with Weather() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def weather_toolkit(url: str, *, timeout_s: float = 5.0) -> HttpToolkit:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    spec = ToolSpec(name="warmth", description="How warm a city is.", parameters=parameters)
    return HttpToolkit("weather", [HttpTool(spec=spec, url=f"{url}/warmth/{{city}}", timeout_s=timeout_s)])


def _questions(tool: str) -> list[LiveTask]:
    return [
        LiveTask(
            prompt=f"How warm is it in {city}?",
            answer=str(warmth),
            calls=(PlannedCall(name=tool, arguments={"city": city}),),
        )
        for city, warmth in CITIES.items()
    ]


def make_weather(section: EnvSection) -> LiveSource:
    """`env.name` of the questions that the HTTP server answers."""
    url = os.environ.get(WEATHER_URL, "http://127.0.0.1:1")
    return LiveSource(section, "weather", [weather_toolkit(url)], _questions("warmth"))


def make_mcp_weather(section: EnvSection) -> LiveSource:
    """`env.name` of the questions that the MCP server answers; without the server's file none can start."""
    server = [sys.executable, os.environ.get("TEST_MCP_SERVER", str(MCP_SERVER))]
    return LiveSource(section, "mcp_weather", [McpToolkit("mcp weather", server)], _questions("mcp_warmth"))
