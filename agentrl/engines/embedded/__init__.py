"""Our own engine for small models on CPUs. It has SGLang's HTTP API. Within `agentrl.engines` only this package imports
torch."""
