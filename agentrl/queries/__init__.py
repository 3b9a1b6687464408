"""What operators ask of the data plane and change in it, by what the store offers. Nothing here decides anything."""
