"""What split inference is worth on hardware that is not here: the simulator, fed by published figures with sources."""
