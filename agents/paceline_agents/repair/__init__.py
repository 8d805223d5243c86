"""The reference repair agent: diagnose, edit, test, feed back, and finish with the true outcome."""
