"""Discovery: what a proxy is told about names and addresses, as pure functions of the cluster's objects."""
