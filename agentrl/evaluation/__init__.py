"""Results of evaluations: the file of `agentrl eval`, those of a run, their summaries, and other forms of them."""
