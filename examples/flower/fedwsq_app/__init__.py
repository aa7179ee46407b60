"""fedwsq as a Flower app."""
