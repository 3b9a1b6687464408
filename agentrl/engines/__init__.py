"""Inference engines: the interface, its HTTP client, routing, and how published weights reach an engine.

Engines pull: they fetch a publication, verify its manifest, load it, compare the canary and only then serve it. So a
late engine catches up by itself, and when it refuses a bad version it goes on serving the previous one. At most half of
the serving engines load at the same time. A completion may span versions; every token keeps its own version.

The tests in `tests/engines/contract` hold the embedded engine and a real SGLang server to the same behaviour.
"""
