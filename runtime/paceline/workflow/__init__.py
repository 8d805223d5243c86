"""Domain types and the one use case: run a step. Knows no proto, gRPC, SQLAlchemy or HTTP."""
