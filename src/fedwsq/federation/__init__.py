"""A federated run: plan, clients, rounds, backends, checkpoints."""
