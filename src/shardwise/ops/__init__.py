"""What a layer does: FLOPs, bytes moved, bytes kept, weights and exchanges, as columns."""
