"""The rules of `paceline spec check`, by what they look at."""
