"""Contains the configuration of a run: its sections, the source of each value, its knobs and its paths.

Importing this package loads nothing, because `paths` and `secrets` are used where pydantic would be too slow.
"""
