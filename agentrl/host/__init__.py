"""The host agent: the parent of all units of one host; it starts, watches and ends their processes.

It is light on purpose: standard library, psutil, msgspec, protocol and errors. It uses no socket itself: the agent gets
a `send` function, and `daemons.host` connects it.
"""
