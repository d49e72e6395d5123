"""What tables call the methods that they treat by themselves."""

LLAMA_CPP = "llama.cpp"
LLAMA_LOOKUP = "llama.cpp, its look-up"
SERVER = "moa-server, plain, streamed over loopback"
PLAIN = "plain"
