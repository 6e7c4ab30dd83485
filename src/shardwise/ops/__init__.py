"""What a layer does: FLOPs, bytes moved, bytes saved, weights and collectives, as columns."""
