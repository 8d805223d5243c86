"""An HTTP process with vLLM's contract in which no model runs: for tests, demos and planning.

Start it with `python -m paceline.emulator`. It is reached over HTTP only, by the adapter that talks to real
servers. The block cache, the scheduling order and the counting follow vLLM; times come from a stated model and
texts from a script.
"""
