"""The run's configuration: its shape, where each value came from, its knobs and its paths.

Importing this package loads nothing: `paths` and `secrets` are used where pydantic would be too slow or too heavy.
"""
