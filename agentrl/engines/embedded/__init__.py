"""An engine of our own for small models on CPUs; it speaks SGLang's HTTP API. Only this package imports torch here."""
