"""What the coordinator knows while it lives: rows, numbers, operations, knobs, questions and who is connected."""
