"""Ways to the clients: bytes out, bytes back."""
