"""Tensors as files hold them: safetensors, and the number formats that weights come in."""
