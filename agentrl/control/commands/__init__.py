"""Contains the commands of the coordinator. Each command prepares its effect and the function that executes it."""
