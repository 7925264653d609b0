import torch

from ptq_cli.quantizers.straight_through import VALUES_AT_ONCE, clipped, map_blocks
from tests.each_case import each_case

SHAPES = [
    (3 * VALUES_AT_ONCE + 5,),
    (2, VALUES_AT_ONCE, 3),
    (VALUES_AT_ONCE, 1, 2),
    (1, 1, 2 * VALUES_AT_ONCE),
    (7, 3 * VALUES_AT_ONCE // 4),
    (257, 3, 33, 5),
]


@each_case("shape", SHAPES, ids=str)
@each_case("reverse", [False, True])
def test_pieces_cover_every_element_once(shape, reverse):
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    if reverse:
        x = x.permute(*reversed(range(x.ndim)))
    for axis in range(x.ndim):
        sizes = [x.shape[axis] if index == axis else 1 for index in range(x.ndim)]
        weights = torch.rand(sizes, generator=torch.Generator().manual_seed(axis))
        found = map_blocks(torch.mul, x, weights)
        assert torch.equal(found, x * weights)
        assert found.stride() == x.stride()


def test_pieces_are_small_enough_for_the_cache():
    seen = []
    map_blocks(lambda part: seen.append(part.numel()) or part.clone(), torch.zeros(100, 40, 300))
    assert sum(seen) == 100 * 40 * 300
    assert VALUES_AT_ONCE / 2 <= max(seen) <= VALUES_AT_ONCE
    assert len(seen) <= 2 * (100 * 40 * 300 / VALUES_AT_ONCE)


def test_parameters_get_none():
    x, high, scale = (torch.ones(2, requires_grad=True) for _ in range(3))
    clipped(torch.mul, x, None, high, scale).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert high.grad is None and scale.grad is None
