"""Arrays become statistics that merge exactly; the calibration artifact keeps them.

A collector never decides anything: which range follows from the statistics is the work of ``amax``. Nothing
here runs a model or opens data: ``pipeline.calibration`` feeds the collectors.

``host_kernels`` holds the counting loops, ``tensor_statistics`` the values that were counted,
``calibration_file`` the artifact. ``max_collector`` and ``histogram_collector`` are the collectors,
``collector_registry`` adds counts of what is not finite. ``torch_collectors`` and ``cuda_collectors`` are the
twins for tensors on a device; they alone import torch. ``cuda_kernels`` are the loops of the latter.
"""
