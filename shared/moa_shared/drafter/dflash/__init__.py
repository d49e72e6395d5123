"""DFlash and DSpark on the device: a block of tokens guessed in one step."""
