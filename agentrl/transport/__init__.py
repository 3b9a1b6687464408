"""Provides ZeroMQ sockets inside an asyncio loop. No other package imports zmq.

Invariants:
- A socket belongs to one thread, and `SocketReader` reads it.
- No call blocks the loop.
- Every queue is bounded.
- A socket on tcp requires CURVE and a key that the keyring knows.
"""
