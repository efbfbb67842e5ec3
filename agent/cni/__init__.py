"""The CNI room: the shim and the sockets to which it speaks, and the files that chain it on this node."""
