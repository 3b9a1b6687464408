"""HTTP of a run: one client for very many short calls, one listener that wants the token of the run."""
