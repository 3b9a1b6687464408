"""Benchmarks against peers on the same machine: `python -m tests.benchmarks [NAME...] [--json]`.

Invariants:
- every figure is shown with the figure of its peer, measured in the same run;
- benchmarks are not tests, so a busy machine makes no test fail.
"""
