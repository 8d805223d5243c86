"""Which replica runs a step, and who waits: pure functions and small state, without clocks, sockets or tasks."""
