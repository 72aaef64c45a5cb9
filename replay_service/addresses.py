"""What may be said of a URL that holds a password."""

from __future__ import annotations

from urllib.parse import urlsplit

from cacherl.errors import ReplayError

SCHEMES = ("redis", "rediss")
_MALFORMED = (
    "replay.url is not of the form redis://user:password@host:port/0: in a password, percent-encode / ? # @ and :, "
    "or put it into the variable that replay.password_env names"
)


def address(url: str) -> str:
    """Scheme, host and port.

    Raises:
        ReplayError: malformed, or of another scheme; the message quotes no part that may be a password's.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ReplayError(_MALFORMED) from None
    if parts.scheme not in SCHEMES:
        raise ReplayError(f"{parts.scheme}://{host or ''} is not a redis:// or rediss:// URL")
    # The @ behind a password with a slash, a question mark or a hash in it ends up beyond the host.
    if "@" in parts.path + parts.query + parts.fragment:
        raise ReplayError(_MALFORMED)
    shown = f"[{host}]" if host and ":" in host else host or "localhost"
    return f"{parts.scheme}://{shown}:{port or 6379}"
