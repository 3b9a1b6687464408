"""What a run's feed told, minute by minute, so that any past one can be looked at again."""
