"""Sandboxes: what a tool server of a toolbox, or the process of an environment, may read, write, reach and use.

A server runs in namespaces by bubblewrap, in a container, or, where its run file says so, without a sandbox
(`sandbox_choice.py`). It sees no state, socket or key of a run, and not the run's uuid, only a mark that gives no
access.

A list of hosts is reached through a proxy process of the toolbox (`network_access.py`, `network_proxy.py`). Rlimits
bound each process, and cgroups the whole sandbox. If the host lacks something, the status of the server says so; if the
sandbox is `required`, the server is not started.
"""
