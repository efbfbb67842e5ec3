"""The test lab: real network namespaces, a stand-in for the proxy, and probes.

It imports nothing of the agent.
"""
