"""Whether a GGUF file gives the text that llama.cpp writes from it (`moa-bench same-text`)."""
