"""Environments that a researcher writes in one Python file: tools, scorers, an agent loop, a dataset.

`import agentrl as rl` gives the names. The file is imported in three places: in a separate process that reports its
declarations (`python -m agentrl.environments FILE`), in samplers, which run its loops and scorers, and in the server of
its tools. Therefore this room imports only the standard library, and importing it costs nothing.
"""
