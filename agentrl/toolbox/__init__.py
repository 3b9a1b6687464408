"""Tools: MCP servers as a pool of sessions behind one HTTP API.

A call id is executed once: a repeated id joins the running call or gets the stored answer. Each server has a circuit
breaker: after too many infrastructure failures admission of tasks that need the server stops, episodes wait without
losing an attempt, and probes close the breaker again.

A server that the toolbox starts runs in a sandbox (`agentrl/sandboxes`). Its output is read in bounded memory
(`bounded_lines.py`).

With `try_again: true` a call that failed for infrastructure is made once more in a session of its own. If it fails
alike while the tool works for other sessions, the failure belongs to the policy: a timeout is shown to the model, a
crash ends the record as `tool_failure`. Otherwise, and always in an outage, it stays an infrastructure failure.
"""
