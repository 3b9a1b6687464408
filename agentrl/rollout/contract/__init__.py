"""The contract kit: what an environment must hold so that it can be trained on, and how it is found out.

`agentrl check` runs it. No model is needed: a script says what a model would.
"""
