"""Faults on purpose: kills, races, rivals, scarcity and bad input, against real network namespaces."""
