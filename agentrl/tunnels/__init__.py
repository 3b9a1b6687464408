"""Connections between the hosts of a run, encrypted and with certificates on both sides.

Every listener of the data plane stays on the loopback address of its host. Each host agent has one tunnel process. A
unit that calls a service on another host connects to the Unix socket of the tunnel here; the tunnel there connects to
the port.

    authority          the run's own certificate authority, in the coordinator's state directory
    certificates       the key of a host, which never leaves its tunnel, and the TLS contexts made of it
    tunnel             the process: entrances, exits, who may pass
    ends               the connections that it joins

Invariants: a tunnel accepts only connections from hosts of this run, by their certificates, and leads only to ports on
which a process of this run listens.
"""
