"""The host agent: parent and reaper of every unit on one host.

It spawns, signals and reaps processes, keeps the ledger of their exit statuses, runs probes, samples resource use and
rotates logs. The local agent also keeps the coordinator alive. The agent is the parent so that the coordinator can die
without touching a unit, and so that exit statuses survive the coordinator.

`Spawn` is idempotent per incarnation. `Exited` is sent once when the leader of an incarnation ends, `GroupEmpty` when
its whole process tree is gone; only then a replacement starts. Processes of a run carry AGENTRL_RUN, AGENTRL_HOST and
AGENTRL_INCARNATION in their environment, so a scan finds them wherever they moved in the process tree.

Light on purpose: standard library, msgspec, protocol and errors. No module here opens a socket; the agent gets a
`send` function, and `daemons.host` connects it.
"""
