"""How a word-level tokenizer cuts text, so that a family can state its closed vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_RUN = re.compile(r"\w+|[^\w]+")


def split_words(text: str, tags: Iterable[str]) -> Iterator[str]:
    """Cut `text` into tags, runs of word characters and runs of other characters; their concatenation is `text`.

    Example: 'read {"id":"d1"} [/TOOL_CALL]' -> 'read', ' {"', 'id', '":"', 'd1', '"} ', '[/TOOL_CALL]'.
    """
    tags = tuple(tags)
    pattern = "|".join(re.escape(tag) for tag in sorted(tags, key=len, reverse=True))
    for part in re.split(f"({pattern})", text) if pattern else (text,):
        if part in tags:
            yield part
        else:
            yield from _RUN.findall(part)


def distinct_words(texts: Iterable[str], tags: Iterable[str]) -> Iterator[str]:
    """The pieces of all `texts` but `tags`, each once, in the order in which they first occur."""
    tags = tuple(tags)
    seen: dict[str, None] = {}
    for text in texts:
        seen.update(dict.fromkeys(split_words(text, tags)))
    return (piece for piece in seen if piece not in tags)
