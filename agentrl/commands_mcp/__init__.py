"""The table of commands as an MCP server over stdio: `agentrl mcp`, for an assistant that watches a run.

    tool_list     the commands as tools: name, schema, hints; pure
    proposals     effects that were shown and wait for their execution; pure
    server        the MCP server, and its connection to the coordinator
    __main__      `python -m agentrl.commands_mcp`

Invariants:
- Without a key an assistant changes nothing: it reads, and it proposes commands that a person executes.
- A command is executed only from a proposal, with the consent to the effect that the proposal showed.
- It offers no admin command, and no effect above the tier that the person who started the server allows.
"""
