"""Part of the operator's tests."""
