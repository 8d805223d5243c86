"""Speculation chosen by measurement: replay real steps without drafts and with several K, and compare."""
