"""Keeps the connected peers, and requests to them that wait for their answers."""
