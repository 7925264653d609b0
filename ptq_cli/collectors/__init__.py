"""Arrays become statistics that merge exactly; the calibration artifact keeps them.

A collector never decides anything: which range follows from the statistics is the amax room's work.
``kernels`` counts, ``bit_histogram`` and ``statistics`` hold what was counted, ``max`` and ``histogram`` are
the collectors; ``extended`` adds each channel's statistics (``channels``, ``channel_kernels``,
``channel_collector``) and counts of what is not finite. ``torch_kernels`` and ``torch_collectors`` are the
twins for tensors on a device, for which alone torch is imported; ``counting`` chooses between the two.

``collect`` feeds collectors from a running model, in several threads by ``feeding``. ``artifact`` and
``codec`` save and load, ``checkpoint`` while it runs. ``share`` says which part of a set was seen, ``merge``
makes one calibration of several parts.
"""
