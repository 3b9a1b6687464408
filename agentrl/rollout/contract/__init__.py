"""The contract kit: the rules that an environment must follow so that it can be trained on, and the probes that test
them.

`agentrl check` runs it. It needs no model: a script plays the model.
"""
