"""The checks of the account, by subject. Each reads documents and names those that do not agree.

    problems    what a check answers            seats       rounds, seats, attempts
    groups      baselines and shares            steps       what was leased, trained, rolled back
    versions    lineages, publications          trained_records    what trained, and from what
    calls       model calls, tool calls, tokens, replays

Invariants: nothing is changed; nothing is counted from another count; a check holds at any moment between two changes,
or at the second of two looks.
"""
