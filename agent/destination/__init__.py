"""The destination service: answers of the picture, told to proxies over gRPC. The only user of gRPC."""
