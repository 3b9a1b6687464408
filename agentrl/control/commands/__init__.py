"""What a command does: desired state, settings, keys, stacks; and its effect, for a preview and when it is done."""
