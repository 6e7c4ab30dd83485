"""The compute graph of a strategy: what runs on which tensors, in a layer and in the model."""
