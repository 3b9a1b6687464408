"""The supervisor is a pure state machine: it takes an event and the time, and returns instructions.

It opens no socket or file, reads no clock and draws no random number. So every decision can be repeated in a test.
Events carry the jitter; tokens are derived from a secret of the run.

    supervisor        the one entry point, and the events of operators and hosts with their functions
    unit_events       what an event about a unit does in each of its states
    reconciliation    what a touched unit does next in each of its states, to come closer to desired state
    unit_lifecycle    the acts of which these consist; above it unit_stops, gang_epochs and unit_ends
    invariants        what holds after every event

    from → to                                   when
    pending → starting                          placed, its dependencies ready, no earlier incarnation alive
    starting → ready                            the unit reports it, its probe succeeds, or it has neither
    starting → stopping                         the start deadline passed (an announced phase extends it)
    ready ↔ suspect                             silent, or the liveness probe fails; heartbeats again
    ready, suspect → stopping                   hung: stacks by SIGABRT, then the process tree is killed
    any with a process → lost                   the host agent is silent and the unit too, or the unit must be killed
    lost → ready, starting                      the same incarnation is back
    lost → pending                              at once if all writes are fenced; else an operator confirms the death
    starting, ready, suspect → draining → stopping → stopped, pending, backoff    scale-down, restart, drain, down
    draining → ready                            the drain was cancelled before SIGTERM
    starting, ready, suspect → backoff → starting    unplanned death; exit 0 of a service is a death
    starting, ready → stopped                   exit 0 of a job
    starting, ready → pending                   exit 75: start again, not counted
    any → fatal                                 exit 78, too many deaths, failed starts or kills for memory
    fatal, stopped → pending                    `restart` or `up`

Three counts are separate: deaths while ready (in a window), starts that never became ready (in a row) and kills for
memory. The first death in a window restarts at once, then after 0.5, 1, 2 … 60 s with jitter. A lost unit that is
replaced leaves a ghost: its old incarnation is killed when its host comes back, and no new incarnation starts while a
ghost is on a reachable host.

A gang is placed as a whole (`gangs.place_gang`). Each start of it is an epoch. One death ends the epoch, and so does
anything else that removes a rank or changes the number of ranks (`gangs.fault`). The next epoch starts when no process
of the last one is left.

An incarnation holds its devices from its start until no process of it is left; a ghost holds those of its incarnation.
"""
