"""Cases of the destination service, played through a real gRPC server and client."""
