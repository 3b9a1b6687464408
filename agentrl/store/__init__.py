"""MongoDB; for now the embedded server, which a run starts as a unit when no URL is configured."""
