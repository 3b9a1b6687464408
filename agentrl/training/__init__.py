"""The trainer: from stored trajectories to gradients, checkpoints and published weights.

    trainer, standing                    the loop, and where it stands
    takeover, history, origin            the beginning of a life: from which checkpoint, or from which model
    warmup, demonstrations, reference    what comes before the first Step, and what all of them are compared with
    selection, suspicion                 the next Step, and what former lives died of
    batches, reading, trajectories       from the documents of a Step to token trees
    packing, model, losses, optimizers, measures, learner
                                         from token trees to new weights
    publication, checkpoints, files      weights for engines and for the next life, whole or not there
    dumps, retention                     recorded batches; what goes from the disk
    evaluating, reports, telling, curves what is told of versions and Steps
    knobs, patience                      what may change meanwhile; a store or a disk that is away
    offline                              the same without a run

Invariants: only this room and the embedded engine import torch; what learns (from packing to learner) knows nothing of
the store, and the loop and what looks into the store for it compute no tensors.
"""
