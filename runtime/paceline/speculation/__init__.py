"""Which drafter, and how many tokens ahead: profiles, what fits together, and what it brings."""
