"""Token-exact transcripts: templates, continuation by ids, parsing of output, matching of resent conversations."""
