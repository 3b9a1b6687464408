"""The programs that run environments of other packages; see `adapters`. They never import agentrl."""
