"""ZeroMQ sockets inside an asyncio loop: the only room that imports zmq.

Invariants: a socket belongs to one thread; every socket is drained through `drain.py`; nothing here blocks the loop;
every queue is bounded; no socket on tcp works without CURVE and a key that the keyring knows.
"""
