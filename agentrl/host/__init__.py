"""The host agent: parent, reaper and witness of all units of one host.

Light on purpose: standard library, msgspec, protocol and errors. Nothing here knows a socket; the agent is handed a
`send` function, and `daemons.host` does the wiring.
"""
