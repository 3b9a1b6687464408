"""Tools: MCP servers that are kept, reserved for episodes and called for them, behind one HTTP API."""
