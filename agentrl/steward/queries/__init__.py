"""What operators ask of the data plane, answered from the store. Nothing here decides anything."""
