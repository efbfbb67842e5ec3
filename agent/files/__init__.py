"""The room that touches a directory of manifests: cluster objects for a node without Kubernetes."""
