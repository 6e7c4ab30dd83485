"""What readers and writers of fine-tuning trainers share: commands, methods, engines, options."""
