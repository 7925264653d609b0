"""Modes and granularities of activations, and the rungs of recovery, by name."""

STATIC, DYNAMIC, FLOAT = "static", "dynamic", "float"
ROW, TENSOR = "row", "tensor"
# Units that share a scale of activations that become integers at each run.
GRANULARITIES = {ROW: "one scale per row of summed values", TENSOR: "one scale and zero point per tensor"}
# Modes of activations, with what each does.
MODES = {
    STATIC: "quantize activations with calibrated ranges",
    DYNAMIC: "quantize activations with ranges found at each run; no calibration data needed",
    FLOAT: "quantize weights only; no calibration data needed",
}
EQUALIZE, SMOOTH, RANGES, ROUND = "equalize", "smooth", "ranges", "round"
IN_FLOAT = "float"
# Rungs in the order in which they run, with what each does.
RUNGS = {
    EQUALIZE: "equalize channel ranges of layers before calibration",
    SMOOTH: "the same for channels of normalizations, and through attention",
    RANGES: "choose the range of each activation by its effect on the outputs",
    IN_FLOAT: "leave a few layers in float, or find ranges at each run, where outputs are below 22 dB",
    ROUND: "choose scales, integers and biases of each layer by what it reads and what earlier layers lost",
}
ALL, NONE, AUTO = "all", "none", "auto"
