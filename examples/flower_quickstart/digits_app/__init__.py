"""FedAvg on handwritten digits, in the shape of Flower's PyTorch quickstart."""
