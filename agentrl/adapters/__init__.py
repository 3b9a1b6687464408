"""Environments of other packages, which a run file names by a word such as `gymnasium:FrozenLake-v1`.

`sources` reads these words. `programs` are the adapters: programs that run in the Python that has the package. It may
be another Python than that of the run, so they import only the package and the standard library. `player` starts them:
`made_tasks` asks such a program for the tasks when a run file is read, and `player_process` is its process beside a
sampler. `harbor_tasks` reads folders of tasks, which a sandbox plays.

Invariants:
- A package is imported in a process of its own. If it blocks, prints, crashes or exits, only its episodes fail.
- A score is computed by the package itself, from the texts that are stored.
"""
