"""Commands of the coordinator: each prepares its effect and the function that executes it."""
