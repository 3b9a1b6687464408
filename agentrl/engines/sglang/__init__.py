"""SGLang's server as an engine of the run: how it is started, kept at the newest verified weights, and ended."""
