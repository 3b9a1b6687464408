"""The trainer: from stored trajectories to gradients, checkpoints and published weights.

Only this room and the embedded engine import torch. What learns (packing, losses, learner) knows nothing of the store;
what keeps the books (trainer, ports, stored) knows nothing of tensors.
"""
