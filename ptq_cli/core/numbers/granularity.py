"""How much of a tensor shares one scale."""

from dataclasses import dataclass

from ptq_cli.core.errors import AxisError


@dataclass(frozen=True)
class PerTensor:
    """One scale for the whole tensor; the scale has shape ``()``.

    Example:
        >>> PerTensor().scale_shape((4, 3, 3, 3)), PerTensor().reduced_axes((4, 3))
        ((), (0, 1))
    """

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - one interface
        """Shape of the scale of a tensor of ``shape``: ``()``."""
        return ()

    def reduced_axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes over which a statistic is reduced: all of them."""
        return tuple(range(len(shape)))

    def broadcast_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - one interface
        """Shape that lets the scale broadcast against the tensor: ``()``."""
        return ()


@dataclass(frozen=True)
class PerAxis:
    """One scale for each index along ``axis``; the scale has shape ``(shape[axis],)``.

    | tensor            | axis | scale   | reduced over |
    |-------------------|------|---------|--------------|
    | Conv (O, I, H, W) | 0    | (O,)    | I, H, W      |
    | MatMul (K, N)     | 1    | (N,)    | K            |

    Raises:
        AxisError: (each method) the tensor has no such axis.

    Example:
        >>> PerAxis(0).scale_shape((4, 3, 5, 5)), PerAxis(0).broadcast_shape((4, 3, 5, 5))
        ((4,), (4, 1, 1, 1))
        >>> PerAxis(-1).reduced_axes((4, 3))
        (0,)
    """

    axis: int

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the scale of a tensor of ``shape``: ``(shape[axis],)``."""
        return (shape[self._kept(shape)],)

    def reduced_axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes over which a statistic is reduced: all but ``axis``."""
        kept = self._kept(shape)
        return tuple(index for index in range(len(shape)) if index != kept)

    def broadcast_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape that lets the scale broadcast against the tensor: 1 on every other axis."""
        kept = self._kept(shape)
        return tuple(size if index == kept else 1 for index, size in enumerate(shape))

    def _kept(self, shape: tuple[int, ...]) -> int:
        rank = len(shape)
        if not -rank <= self.axis < rank:
            raise AxisError(f"axis {self.axis} is outside a tensor of shape {shape}")
        return self.axis % rank


@dataclass(frozen=True)
class PerAxes:
    """One scale for each index along several axes; the scale has their sizes.

    | tensor                                 | axes   | scale  | reduced over |
    |----------------------------------------|--------|--------|--------------|
    | LSTM (directions, 4 * hidden, inputs)  | (0, 1) | (D, C) | inputs       |

    Raises:
        AxisError: (each method) the tensor does not have one of the axes.

    Example:
        >>> both = PerAxes((0, 1))
        >>> both.scale_shape((2, 8, 3)), both.reduced_axes((2, 8, 3)), both.broadcast_shape((2, 8, 3))
        ((2, 8), (2,), (2, 8, 1))
    """

    axes: tuple[int, ...]

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the scale of a tensor of ``shape``: its sizes along the axes."""
        return tuple(shape[axis] for axis in self._kept(shape))

    def reduced_axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes over which a statistic is reduced: all others."""
        kept = self._kept(shape)
        return tuple(index for index in range(len(shape)) if index not in kept)

    def broadcast_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape that lets the scale broadcast against the tensor: 1 on every other axis."""
        kept = self._kept(shape)
        return tuple(size if index in kept else 1 for index, size in enumerate(shape))

    def _kept(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        rank = len(shape)
        for axis in self.axes:
            if not -rank <= axis < rank:
                raise AxisError(f"axis {axis} is outside a tensor of shape {shape}")
        return tuple(sorted(axis % rank for axis in self.axes))


Granularity = PerTensor | PerAxis | PerAxes
