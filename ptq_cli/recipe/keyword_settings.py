"""The settings as typed keyword arguments: written from ``sections`` by ``python -m tools.generate_docs``."""

from typing import Any, TypedDict


class SharedSettings(TypedDict, total=False):
    """The settings whose names no function has for an argument of its own."""

    arch: str
    trust_pickle: bool
    input: dict[str, Any]
    input_shape: dict[str, list[int]]
    rename: dict[str, str]
    batch_size: int
    batch_axis: dict[str, int | str]
    carry: dict[str, str]
    steps: int
    frame: list[int]
    image_mode: str
    resize: list[int]
    crop: list[int]
    scale: float
    mean: list[float]
    std: list[float]
    layout: str
    tokenizer: str
    text_column: list[str]
    label_column: str
    window: int
    stride: int
    tail: str
    pack: bool
    pairs: str
    mask_share: float
    data: Any
    method: str
    samples: int
    set_aside: float
    allow_nonfinite: bool
    amax: str
    percentile: float
    weight_amax: str
    amax_bins: int
    weight_quantizer: str
    weight_bits: int
    weight_alpha: str
    weight_integer: int
    weight_step: float
    weight_centers: int
    weight_granularity: str
    weight_block_size: int
    weight_dtype: str
    weight_symmetric: bool
    activation_mode: str
    activation_granularity: str
    activation_quantizer: str
    activation_bits: int
    activation_dtype: str
    activation_symmetric: bool
    activation_integer: int
    activation_step: float
    target: str
    runtime_operators: bool
    float_type: str
    goal_db: float
    recover: list[str]
    prefer: str
    serve_batch: int
    soc_model: int
    eval_data: Any
    metric: list[str]
    eval_samples: int
    generate: int
    latency: bool
    max_drop: dict[str, float | str]
    max_ratio: dict[str, float | str]
    min: dict[str, float | str]
    max_drift: dict[str, float | str]
    max_size: str
    max_latency_ratio: float
    require_portable: bool
    baseline: str
    max_regression: dict[str, float | str]
    strict: bool
    budget: dict[str, float | str]
    time_budget: str
    device: str
    checkpoint_every: float
    max_memory: str
    engine: str
    include: list[str]
    include_op: list[str]
    exclude: list[str]
    exclude_op: list[str]
    override: list[dict[str, Any]]


class Settings(SharedSettings, total=False):
    """The settings of a recipe by their names; what is not given comes from the lower layers."""

    profile: str
    threads: int
