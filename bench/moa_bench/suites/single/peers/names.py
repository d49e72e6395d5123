"""What tables call the peers that they treat by themselves."""

LLAMA_CPP = "llama.cpp"
SERVER = "moa-server, plain, streamed over loopback"
