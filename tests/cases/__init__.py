"""The redirection cases, which are data, against the pure core and as real traffic against the kernel."""
