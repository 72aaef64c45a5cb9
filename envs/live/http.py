"""HTTP endpoints as tools.

weather = HttpTool(
    spec=ToolSpec(name="weather", description="…", parameters={…}),
    url="https://weather.example/v1/{city}",
    headers={"Authorization": f"Bearer {os.environ['WEATHER_KEY']}"},
)
toolkit = HttpToolkit("weather", [weather])
"""

from __future__ import annotations

import asyncio
import logging
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Literal
from urllib.parse import quote

import httpx

from envs.base import Task, ToolSpec
from envs.live.background import BackgroundLoop
from envs.live.plain import legible, read_content
from envs.live.toolkit import named_once
from envs.observation import NoResultError
from envs.simulator import ToolResult

logger = logging.getLogger(__name__)

#: Answers that may be another one the next time: request timeout, too early, too many requests. So may every 5xx.
_PASSING = frozenset({408, 425, 429})
#: Parts of a path that lead to another folder, however they are quoted.
_ELSEWHERE = frozenset({"", ".", ".."})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTool:
    """One endpoint.

    Attributes:
        url: may name arguments as '{city}'; they are quoted; '', '.' and '..' refused, so none can lead elsewhere.
        method: the other arguments go into the query of a GET or DELETE, and as JSON into the body of the rest.
        headers: are sent and never shown, recorded or logged.
        timeout_s: seconds of a call, from the beginning to the last byte.
        max_bytes: of an answer; a longer one is an error.
        max_chars: of text that is not JSON; the rest is cut off.

    Raises:
        ValueError: `url` names an argument that the tool does not require.
    """

    spec: ToolSpec
    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 30.0
    max_bytes: int = 2**20
    max_chars: int = 4000

    def __post_init__(self) -> None:
        unknown = self.in_path - set(self.spec.parameters.get("required", ()))
        if unknown:
            raise ValueError(f"tool {self.spec.name!r}: url {self.url!r} names {sorted(unknown)}, not a required argument")

    @property
    def in_path(self) -> set[str]:
        """Arguments that the URL names."""
        return {name for _, name, _, _ in string.Formatter().parse(self.url) if name is not None}


class HttpToolkit:
    """Endpoints as a toolkit; one pool of connections for all episodes of the process.

    Cookies are not kept: they would be a state that episodes share.

    Raises:
        ValueError: two tools have one name; or one is not read-only. All episodes share an endpoint, and siblings must not
            influence each other.
    """

    def __init__(self, name: str, tools: Sequence[HttpTool]) -> None:
        if changing := [item.spec.name for item in tools if not item.spec.read_only]:
            raise ValueError(
                f"toolkit {name!r}: {', '.join(changing)} must be read_only, since all episodes share the endpoint; for tools "
                "that change something use an MCP server or a class of @tool methods, which begin anew in every episode"
            )
        self.name = name
        self._tools = named_once(f"tools of toolkit {name!r}", [(item.spec.name, item) for item in tools])
        self._background: BackgroundLoop | None = None
        self._client: httpx.AsyncClient | None = None

    @property
    def varying(self) -> frozenset[str]:
        """None: what changes nothing is never called again."""
        return frozenset()

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(item.spec for item in self._tools.values())

    def scope(self, task: Task) -> str:
        del task
        return self.name

    @property
    def alive(self) -> bool:
        """Always: every request stands for itself."""
        return True

    async def open(self, task: Task) -> HttpToolkit:
        del task
        return self

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """See `ToolSession.call`: a toolkit of endpoints is every episode's session."""
        if self._background is None:
            self._background = BackgroundLoop(f"http tools {self.name}")
        return await self._background.run(self._request(self._tools[name], arguments))

    async def close(self) -> None:
        """An episode's end releases nothing; the connections are the process's."""

    async def _request(self, item: HttpTool, arguments: Mapping[str, Any]) -> ToolResult:
        if self._client is None:
            self._client = httpx.AsyncClient(cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())))
        if elsewhere := sorted(name for name in item.in_path if str(arguments[name]) in _ELSEWHERE):
            return ToolResult(error=f"{elsewhere[0]} must not be empty, . or ..")
        url = item.url.format(**{name: quote(str(arguments[name]), safe="") for name in item.in_path})
        rest = {name: value for name, value in arguments.items() if name not in item.in_path}
        in_query = item.method in ("GET", "DELETE")
        try:
            async with (
                asyncio.timeout(item.timeout_s),
                self._client.stream(
                    item.method,
                    url,
                    params=rest if in_query else None,
                    json=None if in_query else rest,
                    headers=dict(item.headers),
                    timeout=item.timeout_s,
                ) as response,
            ):
                return _result(item, response.status_code, await _body(response, item.max_bytes))
        except (httpx.TimeoutException, TimeoutError):
            raise NoResultError("timeout") from None
        except httpx.InvalidURL:
            return ToolResult(error="the arguments are too long")
        except httpx.HTTPError as error:
            logger.warning("tool %s got no answer: %r", item.spec.name, error)
            raise NoResultError("transient") from error


async def _body(response: httpx.Response, limit: int) -> bytes | None:
    """None when it is longer than `limit` bytes."""
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > limit:
            return None
    return body


def _result(item: HttpTool, status: int, body: bytes | None) -> ToolResult:
    if status >= 500 or status in _PASSING:
        logger.warning("tool %s answered with status %d", item.spec.name, status)
        raise NoResultError("transient")
    if not 200 <= status < 300:
        return ToolResult(error=f"status {status}")
    if body is None:
        return ToolResult(error="the answer is too long")
    if (content := read_content(body)) is None:
        content = {"text": legible(body.decode(errors="replace")[: item.max_chars])}
    return ToolResult(content=content)
