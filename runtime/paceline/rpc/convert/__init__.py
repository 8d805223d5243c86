"""Pure conversion between `paceline.v1` messages and domain types."""
