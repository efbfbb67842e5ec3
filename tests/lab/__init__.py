"""The test lab: real network namespaces, a stand-in for the proxy, and probes. Imports nothing of the agent."""
