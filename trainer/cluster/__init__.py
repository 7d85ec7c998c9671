"""Several machines that share a queue: Ray carries it, and only the member process imports Ray."""
