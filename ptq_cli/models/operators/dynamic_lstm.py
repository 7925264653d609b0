"""ONNX Runtime's LSTM on integers, which quantizes its activations at each run: its name and its inputs."""

DYNAMIC_LSTM = "DynamicQuantizeLSTM"
MICROSOFT = "com.microsoft"
"""Its domain, and that of all operators of ONNX Runtime's own."""
KERNEL_PARAMETERS = {1: 8, 2: 10}
"""By the input that is a weight: the input that is its scale; the zero point is the next one."""
KERNEL_INPUTS = 12
"""The eight of LSTM, then scale and zero point of W and of R."""
