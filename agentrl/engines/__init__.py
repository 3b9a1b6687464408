"""Inference engines: the interface, its HTTP client, routing, and how published weights reach an engine.

Engines pull: they fetch a publication, verify its manifest, load it, compare the canary and only then serve it. So a
late engine catches up by itself, and when it refuses a bad version it goes on serving the previous one. At most half of
the serving engines load at the same time. A completion may span versions; every token keeps its own version.

A kind of engine declares only what differs. `forwarding_engine` has the calls of an engine whose unit passes them on to
a server: the kind gives the pieces of one answer. `server_engine` has the weights of an engine in a server of another
project: the kind says how the server starts, loads, scores, closes and opens. `server_process` has its process.

The tests in `tests/engines/contract` hold the embedded engine and a real SGLang server to the same behaviour.
"""
