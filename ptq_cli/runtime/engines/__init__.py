"""What runs a quantized model for a target: one file for each runtime, behind the interface of ``engine``.

What may enter: how a runtime is opened, which of its kernels compute in integers, and how long they take.
Whoever needs a runtime asks ``engine_registry`` for it, by the name that the target's table has.
"""
