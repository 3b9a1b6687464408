"""Results of evaluations: the results file of `agentrl eval`, the evaluations of a run, summaries, and other
formats."""
