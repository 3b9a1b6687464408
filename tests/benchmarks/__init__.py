"""Measurements beside their peers, in one run on one machine: `python -m tests.benchmarks [NAME...] [--json]`.

Invariants: every figure is shown with what it is compared to, measured in the same run; nothing here is a test, so a
busy machine makes nobody's change fail.
"""
