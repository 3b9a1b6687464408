"""The steward: the only housekeeper of the data plane.

    settings          the configuration with the present knob values
    steward_knobs     settings that may change while the run is live
    steward           one round of housekeeping after another
    epochs            dataset rows that become Tasks
    admission         how many Tasks may be sampled now
    group_upkeep      next attempts, overdue groups, Tasks that train again, Tasks of evaluations
    dead_owners       leases of dead owners, silent services, overdue publications
    batch_waits       what a batch or an evaluation waits for
    retention         details of consumed Tasks that are removed; the stop of admission on a full disk

Invariants: every act is an idempotent conditional update that reads the documents and keeps no state in memory, so two
stewards do no harm and a killed one loses nothing. Without a steward, admitted Tasks still finish, close and train.
"""
