"""The only housekeeper of the data plane: epochs, admission, expiry, next attempts, groups, dead letters.

    rules         what the configuration and the knobs say      epochs        rows that become Tasks
    admission     what may be sampled now                       attempts      what follows a failed Record
    closing       groups that nobody else closed                expiry        what the dead held
    evaluations   Tasks that pin a version                      waits         what a batch waits for
    retention     what of consumed Tasks goes                   knobs         what may change meanwhile
    steward       all of it, again and again                    queries       what operators ask, and change

Invariants: every act is an idempotent conditional update that starts from what the store says and remembers nothing,
so two stewards are harmless and a killed one loses nothing; with no steward at all, what was admitted still finishes,
closes and trains.
"""
