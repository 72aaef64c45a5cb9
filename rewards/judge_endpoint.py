"""EndpointModel: a judge behind an OpenAI-compatible server."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import socket
import time
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from cacherl.errors import ConfigError
from cacherl.reward_settings import JudgeSection
from rewards.judgement import Judgement, JudgementError

_MAX_BYTES = 1 << 20
_CHUNK = 1 << 14
_MAX_TOKENS = 64
#: Replies that say 'later', not 'never'.
_PASSING = frozenset({408, 409, 425, 429})
_FENCE = re.compile(r"^```(?:json)?\s*|\s*```$")


class EndpointModel:
    """Asks `url`/chat/completions for ``{"score": s}``; a query of the URL (`?api-version=…`) goes with it.

    Raises:
        ConfigError: the URL is no http(s) URL, or the key's environment variable is not set.
    """

    def __init__(self, section: JudgeSection) -> None:
        address = _address(section.url or "")
        self._secure = address.scheme == "https"
        self._host, self._port = address.hostname or "", address.port
        self._path = address.path.rstrip("/") + "/chat/completions" + (f"?{address.query}" if address.query else "")
        self._model = section.model
        self._instructions = section.instructions
        self._headers = {"Content-Type": "application/json", **_authorization(section.api_key_env)}

    def score(self, transcript: str, *, deadline_s: float) -> Judgement:
        """Ask once; every read is bounded by what is left of the deadline, also from a server that answers drop by drop."""
        deadline = time.monotonic() + deadline_s
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_left(deadline))
        connection.response_class = partial(_response, deadline)  # type: ignore[assignment]
        try:
            connection.request("POST", self._path, self._body(transcript), self._headers)
            with contextlib.closing(connection.getresponse()) as response:
                text = _read(response)
        except (OSError, http.client.HTTPException) as error:
            raise JudgementError(f"{self._host}: {error!r}") from error
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            passing = response.status in _PASSING or response.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
            raise JudgementError(f"{self._host} answered {response.status}: {text:.200}", final=not passing)
        return read_reply(text)

    def _body(self, transcript: str) -> bytes:
        messages = [{"role": "system", "content": self._instructions}, {"role": "user", "content": transcript}]
        request = {"model": self._model, "messages": messages, "temperature": 0, "max_tokens": _MAX_TOKENS}
        return json.dumps(request).encode()


def read_reply(text: str) -> Judgement:
    """The score in a chat completion whose content is ``{"score": s}`` and nothing else, up to a code fence.

    Raises:
        JudgementError: the reply is anything else; no number is picked out of prose.
    """
    try:
        content = json.loads(text)["choices"][0]["message"]["content"]
        verdict = json.loads(_FENCE.sub("", content.strip()))
        return Judgement(verdict["score"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise JudgementError(f"not a judgement: {text:.200} ({type(error).__name__})") from error


class _TimelyReader(io.RawIOBase):
    """What a socket receives until `deadline`, however little comes at a time: headers count as much as the body."""

    def __init__(self, stream: socket.socket, deadline: float) -> None:
        self._stream = stream
        self._raw = stream.makefile("rb", buffering=0)  # keeps the connection until the reply is closed
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._stream.settimeout(_left(self._deadline))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response(deadline: float, stream: socket.socket, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:
    """`http.client`'s reply, all of it read before `deadline`."""
    response = http.client.HTTPResponse(stream, *args, **kwargs)
    response.fp.close()
    response.fp = io.BufferedReader(_TimelyReader(stream, deadline))
    return response


def _read(response: http.client.HTTPResponse) -> str:
    parts: list[bytes] = []
    size = 0
    while chunk := response.read1(_CHUNK):
        size += len(chunk)
        parts.append(chunk)
        if size > _MAX_BYTES:
            raise JudgementError(f"the reply has more than {_MAX_BYTES} bytes")
    return b"".join(parts).decode(errors="replace")


def _address(url: str) -> SplitResult:
    """
    Raises:
        ConfigError: not the URL of a server, or with credentials, which belong in a variable.
    """
    try:
        address = urlsplit(url)
        usable = address.scheme in ("http", "https") and address.hostname and url.isascii() and not re.search(r"\s", url)
        if usable and address.username is None and address.port != 0:
            return address
    except ValueError:
        pass  # a port that is none, a bracket that is not closed
    raise ConfigError(
        f"reward.judge.url {url!r} must be an http:// or https:// URL like http://host:8000/v1, without a user: the key goes "
        "into the environment variable that reward.judge.api_key_env names"
    )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise JudgementError("the deadline passed")
    return left


def _authorization(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"reward.judge.api_key_env {variable!r} is not set in the environment")
    return {"Authorization": f"Bearer {key}"}
