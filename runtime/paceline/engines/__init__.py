"""The only way to any engine: the port, vLLM's HTTP API behind it, and supervised servers."""
