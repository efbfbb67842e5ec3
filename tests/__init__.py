"""Tests, each against the real kernel wherever there is one."""
