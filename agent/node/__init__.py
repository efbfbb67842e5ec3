"""The room that touches this node's kernel: network namespaces, nf_tables, /proc."""
