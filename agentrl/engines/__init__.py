"""Inference engines: the protocol, its client over HTTP, routing, weights that are pulled, and an engine of our own."""
