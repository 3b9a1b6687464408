"""A run of the release before comes up under this one with nothing lost; its files are in `release_before`."""
