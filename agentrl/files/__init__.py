"""Files of a run on hosts that do not share its directory: weights, checkpoints, data, code and the configuration.

Each host has one file process (`daemons.files`). It answers the file processes of other hosts, which reach it through
the tunnels (`agentrl/tunnels`), and gets the files that units of its own host need. A file is cut into pieces. Their
hashes are in the manifest of a publication, in the document of a checkpoint or in the list of files that the
coordinator's host makes. Hosts that have pieces pass them on, so the host that wrote a file sends each piece about
once.

    pieces             how a file is cut, and the hashes of its pieces
    piece_schedule     pure: which piece is requested from which host next
    frames             the messages between file processes, and between a unit and its own
    sources            the files of this host that others may read
    cache              files from other hosts: by hash, with a limit
    pulls              gets one file from the other hosts
    file_service       the two listeners: for other hosts, and for the units of this one
    unit_files         the interface for units

Invariants: a piece is written only if its hash is right; a file gets its name when it is whole and durable; the cache
never removes a file that a unit holds; other hosts read weights, checkpoints and the files that the run file names, and
no other file.
"""
