"""Contains the coordinator's I/O: everything that connects the pure supervisor to sockets, disk and clock.

    coordinator             builds the parts and runs them        context     what the parts share
    message_router          every message: sender, then handler
    handlers/               clients, host agents, units           commands/   previews and acts of each command
    instruction_queue, instruction_handler   carry out the supervisor's instructions, Persist first
    state/                  rows, metrics, operations, knobs      messaging/  peers and pending requests
    persistence/            journal, keys, locks                  alerts/     rules, lifecycle, delivery
    periodic_checks         leases, feed, alerts by the clock     recovery    state of earlier coordinators
    own_files               restores removed files        progress_watch   runs that make no progress
    feed_recorder           the feed on disk                      shutdown    the proof at the end of `down`

Commands change desired state only: `+1` becomes absolute when it is accepted, `restart` raises a generation. So
executing a command again after a crash is harmless. If a coordinator dies between the acceptance and the start of a
command, the next coordinator starts it. An operation ends when its units reached the goal, cannot reach it, or got
another goal, or when its deadline passed. Every wait has a limit.

Invariants:
- A command is refused before anything changes, or durable before it is answered.
- The death of a coordinator touches no unit: units keep working and register again with the next one.
- A row or an answer never exceeds one message of 4 MiB.
"""
