"""Messages of `io.linkerd.proxy.destination`, generated from the .proto files here by `make proto`.

They live in a descriptor pool of their own: another library of the process may bring its own copy of
the same packages.
"""
