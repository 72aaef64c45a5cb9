"""Tools that are not simulated: Python functions, HTTP endpoints, MCP servers, and episodes around them."""
