"""Creates the ZeroMQ contexts of a process.

The connecting sockets of a process share one context, which a forked child never uses. The sockets of a coordinator
have a context of their own, because the ZAP handler that checks keys belongs to a context.
"""

from __future__ import annotations

import os
import threading

import zmq

MAX_SOCKETS = 20_000

_lock = threading.Lock()
_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A context that allows more sockets than the library's default of 1023."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


def connecting_context() -> zmq.Context[zmq.Socket[bytes]]:
    """The context of all sockets by which this process connects to others."""
    with _lock:
        context = _contexts.get(os.getpid())
        if context is None:
            context = _contexts[os.getpid()] = new_context()
        return context
