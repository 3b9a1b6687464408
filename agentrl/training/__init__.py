"""The trainer: from stored trajectories to gradients, checkpoints and published weights.

    trainer, trainer_state, waiting      the loop, its state, and what it waits for
    resume, initial_model, warmup
                                         the beginning: from a checkpoint, or from a model and its warm-up
    reference_model                      the policy that training is compared with
    batch_selection, poison_trials       the next step, and groups that ended former trainers
    batch_assembly, batch                from the documents of a step to token trees
    packing, micro_batch                 from token trees to rows, and to tensors
    architectures, policy_model, tree_attention
                                         what is known of models; the model, and its attention over packed trees
    scorers, pair_scores                 a model as a function from micro-batches to columns of pairs; log-probs
    parallel, mesh, parallel_check       how a model and a batch are spread over ranks; what a model cannot have
    tensor_parallel, context_parallel, expert_parallel, pipeline, sharding
                                         each kind of parallelism, as a change of a scorer
    collectives, spread_tensors          what ranks exchange in a pass; tensors of which each has a part
    ranks, rank_processes                the calls of ranks, and their processes
    activation_checkpoints
                                         what the backward pass computes again; smaller parts when memory is too small
    precision                            16 bits in a step, and the scale of the loss that float16 needs
    losses, corrections, optimizers, step_metrics, learner, learner_state
                                         from log-probs to new weights
    computation                          work on tensors beside the loop
    outputs, weight_files, checkpoints, atomic_directories, disk_retention
                                         weights for engines and for the next life; what is removed again
    evaluator, step_reporting            results of versions and steps
    learning_watch                       evaluation and reward against their best
    trainer_knobs, scientific_settings   settings that may change while the run is live; what each change of them keeps
    batch_dumps, offline                 recorded batches, and training without a run

Invariants: only this room and the embedded engine import torch; the modules that learn (from packing to learner) do not
know the store; the loop, and the modules that read the store for it, compute no tensors.
"""
