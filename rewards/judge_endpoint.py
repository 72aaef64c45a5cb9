"""EndpointModel: a judge behind an OpenAI-compatible server."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import time
from urllib.parse import urlsplit

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
    """Asks `url`/chat/completions for ``{"score": s}``.

    Raises:
        ConfigError: the URL is no http(s) URL, or the key's environment variable is not set.
    """

    def __init__(self, section: JudgeSection) -> None:
        address = urlsplit(section.url or "")
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(
                f"reward.judge.url {section.url!r} must be an http:// or https:// URL such as http://host:8000/v1"
            )
        self._secure = address.scheme == "https"
        self._host, self._port = address.hostname, address.port
        self._path = address.path.rstrip("/") + "/chat/completions"
        self._model = section.model
        self._instructions = section.instructions
        self._headers = {"Content-Type": "application/json", **_authorization(section.api_key_env)}

    def score(self, transcript: str, *, deadline_s: float) -> Judgement:
        """Ask once; every read is bounded by what is left of the deadline, also from a server that answers drop by drop."""
        deadline = time.monotonic() + deadline_s
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_left(deadline))
        try:
            connection.request("POST", self._path, self._body(transcript), self._headers)
            stream = connection.sock  # a reply that ends the connection takes it away
            with contextlib.closing(connection.getresponse()) as response:
                text = _read(stream, response, deadline)
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


def _read(stream: socket.socket, response: http.client.HTTPResponse, deadline: float) -> str:
    parts: list[bytes] = []
    size = 0
    while True:
        stream.settimeout(_left(deadline))
        chunk = response.read1(_CHUNK)
        if not chunk:
            return b"".join(parts).decode(errors="replace")
        size += len(chunk)
        parts.append(chunk)
        if size > _MAX_BYTES:
            raise JudgementError(f"the reply has more than {_MAX_BYTES} bytes")


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
