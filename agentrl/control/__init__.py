"""The coordinator's I/O: what is wanted, what is, and everything that carries the one to the other."""
