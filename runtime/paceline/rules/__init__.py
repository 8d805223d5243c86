"""Rules of the platforms that vLLM runs on: a table with sources, and a check for each that can be checked."""
