"""MongoDB, the only store of the data plane: its documents, and every change that is ever made to them.

    database        the one seam to the driver           documents      what the collections hold
    indexes         what the queries stand on            access         where the database of a run is
    tasks           rounds, seats, requeue               claims         a Record in a sampler's hand
    trajectories    turns, model calls, tool calls       chunks         values too large for a document
    groups          closing a Task                       steps          lease, commit, release, roll back
    lineages        one life of the trainer's weights    checkpoints, publications, evaluations
    counts          what admission counts                updates        words of the update language
    owners          leases of incarnations               services       engines and toolboxes that answer
    datasets        files of tasks                       lists          filtered pages for people
    accounting      sums that must agree, from `audit/`  census         what became of attempts, in numbers
    pruning         consumed Tasks without details       retraining     trained Tasks that may train once more
    wipe            the end of all of it                 wiping         the same of a run that is down, with its files

    binary, files, embedded     the MongoDB server that a run starts as a unit when no URL is configured

Invariants: statuses move by conditional updates that name the status they start from and the owner or lineage that
may make the move, never by saving whole documents; ids say where a document belongs, so writing it again changes
nothing; a change that spans documents is ordered so that whoever finds it half done can finish it; times that decide
anything are the server's.
"""
