"""Measure a running server, write down under which conditions, and compare two such receipts."""
