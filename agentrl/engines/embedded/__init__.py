"""An engine of our own for small models on CPUs; it speaks SGLang's HTTP API. torch is imported below here only."""
