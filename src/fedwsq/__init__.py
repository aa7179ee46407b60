"""Communication-efficient federated learning: weight standardization and DANUQ, in real bytes."""

__version__ = "0.1.0"
