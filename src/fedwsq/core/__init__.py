"""What every layer speaks: types, arithmetic over named tensors, addressed randomness, errors."""
