"""Provides HTTP for a run: a client for very many short calls, and a listener that requires the token of the run."""
