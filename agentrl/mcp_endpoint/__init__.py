"""The tools of a run for programs outside of it: as one MCP server (streamable HTTP), and as `/mcpapi` by plain HTTP.

    outside_sessions    the sessions and calls of one program, within its quotas
    http_api            `/mcpapi` and its OpenAPI document
    mcp_listener        the HTTP listener: tokens, paths, the MCP server of each program

Invariants:
- A request without a token of the run file gets no information.
- A program uses only its own sessions, and takes no process of a pool that episodes need.
- The calls of a program belong to no record and are in no statistics of the run. `tools sessions` counts those of open
  sessions, and the log of the toolbox has a line for each, both with the name of the program.
"""
