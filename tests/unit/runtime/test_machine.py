"""Names of devices, and how ONNX Runtime is told of them."""

import pytest

from ptq_cli.core.errors import UnknownNameError
from ptq_cli.runtime.machine import HOST, parse_device
from tests.each_case import each_case


@each_case("text", ["cpu", "cuda", "cuda:0", "cuda:13"])
def test_a_device_is_written_as_it_is_read(text):
    assert str(parse_device(text)) == text


@each_case(
    "text, meant",
    [
        ("gpu", "cuda"),
        ("GPU", "cuda"),
        ("gpu:0", "cuda"),
        ("CUDA", "cuda"),
        ("cuda0", "cuda"),
        ("cuda:", "cuda"),
        ("cuda:-1", "cuda"),
        ("cuda:x", "cuda"),
        ("cuda:²", "cuda"),
        ("cuda:99999999999", "cuda"),
        ("nvidia", "cuda"),
        ("cudda", "cuda"),
        ("cpu0", "cpu"),
    ],
)
def test_another_name_is_refused_with_the_one_that_was_meant(text, meant):
    with pytest.raises(UnknownNameError) as caught:
        parse_device(text)
    assert caught.value.message == f"unknown device '{text}' (did you mean '{meant}'?)"
    assert caught.value.hint == "known: cpu, cuda, cuda:N"


def test_the_gpu_is_the_one_that_was_named_and_its_arithmetic_that_of_float32():
    options = parse_device("cuda:3").provider_options
    assert options["device_id"] == "3" and options["use_tf32"] == "0"
    assert parse_device("cuda").provider_options["device_id"] == "0"
    assert (HOST.provider, HOST.provider_options) == ("CPUExecutionProvider", {})


@each_case(
    "text, rank, own",
    [("cpu", 2, "cpu"), ("cuda", 0, "cuda:0"), ("cuda", 2, "cuda:2"), ("cuda:1", 2, "cuda:1")],
)
def test_each_process_of_a_machine_has_a_gpu_of_its_own_unless_one_was_named(text, rank, own):
    assert str(parse_device(text).for_rank(rank)) == own
