"""GGUF files: models in the format of llama.cpp, one file (or shards) for weights and all else.

``files`` knows names, ``header`` reads what a file says without its weights; from that,
``tokenizer`` (with ``pre_tokenizers``) builds a tokenizer, ``config`` (with ``rotation``) a
configuration of transformers, which ``folder`` keeps in the user's cache; ``weights`` reads
tensors, and ``source`` hands them out, in their own bits or dequantized.
"""
