"""An MCP server on stdio: a read-only tool, or, with the argument 'shelf', tools that change what the server holds.

Appends a line to the file that MCP_CALLS names for every call.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("weather")
held: dict[str, int] = {}


def note(call: str) -> None:
    if path := os.environ.get("MCP_CALLS"):
        with Path(path).open("a") as file:
            file.write(f"{call}\n")


if "shelf" in sys.argv:

    @server.tool()
    def put(key: str, value: int) -> dict[str, Any]:
        """Put a value on the shelf."""
        note(f"put {key} {value}")
        held[key] = value
        return {"held": dict(held)}

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def look() -> dict[str, Any]:
        """Look at the shelf."""
        note("look")
        return {"held": dict(held)}

    @server.tool()
    def drop(key: str) -> dict[str, Any]:
        """Take a value from the shelf."""
        note(f"drop {key}")
        return {"value": held.pop(key)}

    @server.tool()
    def stamp(key: str) -> dict[str, Any]:
        """Put 0 on the shelf, and say when."""
        note(f"stamp {key}")
        held[key] = 0
        return {"held": dict(held), "at": time.time_ns()}

    @server.tool()
    def vanish() -> dict[str, Any]:
        """End the server."""
        note("vanish")
        os._exit(1)

else:

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def mcp_warmth(city: str) -> dict[str, Any]:
        """How warm a city is."""
        note(f"mcp_warmth {city}")
        return {"city": city, "celsius": {"bern": 12, "rome": 21, "oslo": 4}[city]}


server.run("stdio")
