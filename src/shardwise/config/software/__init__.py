"""What is known of the software that trains: facts by release and accelerator."""
