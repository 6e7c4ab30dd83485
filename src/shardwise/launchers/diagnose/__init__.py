"""What a training run is slower at than predicted, and what would make it faster."""
