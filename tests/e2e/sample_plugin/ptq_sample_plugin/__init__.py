"""A target for ptq; the metric and the amax method are in files of their own."""

from pathlib import Path

NPU = Path(__file__).with_name("npu.toml")
