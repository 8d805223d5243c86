"""Model files: which ones Paceline can fetch by itself, and where they lie."""
