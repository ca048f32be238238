"""GGUF files: models in the format of llama.cpp, one file (or shards) for weights and all else.

``files`` knows names, ``header`` reads what a file says without its weights; from that,
``tokenizer`` (with ``pre_tokenizers``) builds a tokenizer, ``config`` (with ``rotation``) a
configuration of transformers, and ``weights`` the parameters. ``convert`` makes of them a folder in
Hugging Face's format, once, in the user's cache.
"""
