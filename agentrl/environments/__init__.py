"""Environments that a researcher writes in one Python file: tools, scorers, an agent loop, a dataset.

`import agentrl as rl` gives the names. The file is imported in three places: in a process of its own that says what it
declares (`python -m agentrl.environments FILE`), in samplers, which run its loops and scorers, and in the server of its
tools. So this room imports the standard library only, and importing it costs nothing.
"""
