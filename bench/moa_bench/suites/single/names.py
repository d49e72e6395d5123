"""What tables call the methods that they treat by themselves."""

LLAMA_CPP = "llama.cpp"
SERVER = "moa-server, plain, streamed over loopback"
PLAIN = "plain"
