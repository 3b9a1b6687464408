"""Checks whether a run can work here: `python -m agentrl.doctor [--json] [--inputs] [--set A.B=C] [RUN.yaml]`.

`host_checks` examines this host, `run_checks` examines what a run needs, and `__main__` prints the results.

Invariants:
- A check leaves nothing behind.
- Every check answers with a sentence, and with a hint if something is wrong.
- `fail` is only for a fault that stops a run.
"""
