"""The gRPC side: server, servicers, interceptor, conversion and error status. Sees the use cases as Protocols."""
