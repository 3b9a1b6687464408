"""MongoDB, the only store of the data plane: its documents, and every change that is made to them.

    database             the one interface to the driver    run_database    the database and configuration of a run
    documents, schema    what collections hold; its version indexes         what queries use
    tasks                rounds, seats, requeue             claims          Records that a sampler holds
    call_writer, calls   model calls with tool calls        chunks          values too large for a document
    groups               closing a Task                     steps           lease, commit, release, roll back
    lineages             lifetimes of the trainer's weights checkpoints, publications, evaluations
    evaluated_attempts   attempts of evaluations of the run
    history              which steps and checkpoints count  rollbacks       an operator's choice for the next lineage
    admission_counts     what admission counts              attempt_statistics  outcomes of attempts for the metrics
    owners               leases of incarnations             service_registry    engines and toolboxes that answer
    datasets             files of tasks                     lists, list_cursors filtered pages
    accounting, audit    sums that must agree               retraining      trained Tasks that may train again
    pruning              removes details of consumed Tasks  update_expressions   terms of the update language
    run_wipe                   deletes all data of a run   server_checks  what a server must be able to do
    database_users, readable_tokens    for people with a MongoDB client of their own

    database_identity, mongod_binary, mongod_files, mongod_server    the MongoDB server of a run without a URL

Invariants: statuses move by conditional updates that name the status they start from and the owner or lineage that may
make the move, and documents are never saved as a whole; the id of a document contains the ids of what it belongs to, so
writing it again changes nothing; a change that spans documents is ordered so that a process that finds it half done can
finish it; decisions use only the time of the server.
"""
