"""Contains the commands of the coordinator. Each prepares its effect and the function that executes it."""
