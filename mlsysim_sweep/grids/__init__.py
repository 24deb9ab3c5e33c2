"""What is asked: specs, the axes they name, and the checked grid that the engine evaluates."""
