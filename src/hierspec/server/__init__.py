"""An OpenAI-compatible service on the engine loop: ``hierspec serve``.

``settings`` are the operator's, ``wire`` is what clients send and get, ``prepare`` turns requests
into the engine's own terms, ``service`` is the bridge between the web's event loop and the engine's
thread, ``app`` puts the routes together. Needs the extra ``server``.
"""
