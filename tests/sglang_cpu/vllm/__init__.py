"""Not vLLM: the one module of it that SGLang calls on processors."""
