"""The benchmarks: real namespaces, the product's own code, and beside it what it replaces.

Every number is measured on the machine that runs them. Ratios hold within one run; speeds never fail.
"""
