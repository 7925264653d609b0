"""Arrays become statistics that merge exactly; the calibration artifact keeps them.

A collector never decides anything: which range follows from the statistics is the amax room's work.
``kernels`` counts, ``bit_histogram`` and ``statistics`` hold what was counted, ``max`` and ``histogram``
are the collectors, ``torch_kernels`` and ``torch_collectors`` their twins for tensors on a device; only for
those is torch imported. ``artifact`` saves and loads, ``collect`` feeds collectors from a running model.
``share`` says which part of a set was seen, ``merge`` makes one calibration of several parts.
"""
