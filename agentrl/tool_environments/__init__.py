"""Tool environments: the packages of a tool server, installed in a directory of their own.

The lock file beside the run file pins them (`config/tool_lock.py`). `agentrl up` installs what is missing; a toolbox
that finds a directory removed installs it again. Both do so in another process, `python -m agentrl.tool_environments`,
because pip and npm take minutes.

Invariants:
- An environment is made for exactly its pins, once for all runs of a user, and never changed.
- It is built in a temporary directory and renamed when it is complete, so an incomplete environment is never used.
- pip and npm use the configuration of the person who installs; a tool server does not see it.
- Without `build: true` no code of a package runs during the installation.
"""
