"""The agent behind Debian's containerd and runc."""
