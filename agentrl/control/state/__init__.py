"""Contains the state that the coordinator holds in memory: rows, metrics, operations and knobs."""
