"""Cases that travel: a quantized file and each of its integer kernels, with inputs and what has to come out.

``integer_kernels`` cuts a file and says what a kernel has to give on any processor, ``run_cases`` writes the
folder, ``device_answers`` judges what a device gave. ``run``, its twins for node and for a page, and the
notes beside them are copied into each folder: they need nothing of ptq. What may enter: what is decided
without a run directory; nothing here asks which device it was.
"""
