"""Compile the kernels for GPUs without one: ``python -m tools.compile_kernels``; it needs numba-cuda[cu13].

numba's simulator runs them as Python, which allows what the compiler refuses; only this shows such things
before they come to a GPU.
"""

import sys
from types import SimpleNamespace
from typing import Any

CAPABILITIES = ((8, 0), (9, 0), (10, 0))  # of A100, H100 and H200, B200


def main() -> int:
    """Compile each kernel for each kind of GPU, and print how long its code is."""
    from numba import types
    from numba.cuda import dispatcher

    from ptq_cli.collectors import cuda_kernels
    from ptq_cli.collectors.cuda_collectors import READ

    flat, table = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
    octaves, one = types.Array(types.int32, 1, "C"), types.int64
    state = (octaves, octaves, table, table)
    kernels: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    for dtype, (words, bits_of) in READ.items():
        memory = types.Array(getattr(types, words.name), 1, "C")
        for counts in (True, False):
            kernel = cuda_kernels.pass_over(bits_of, counts=counts)
            name = f"{dtype} {'histogram' if counts else 'max'}"
            kernels[name] = (kernel, (memory, flat, flat, flat, one, one, *state))
    kernels["settle"] = (cuda_kernels.settle, (flat, *state, types.boolean))
    for capability in CAPABILITIES:
        # Called functions are compiled for the GPU at hand.
        device = SimpleNamespace(compute_capability=capability)
        setattr(dispatcher, "get_current_device", lambda device=device: device)  # noqa: B010
        for name, (kernel, signature) in kernels.items():
            code, _ = cuda_kernels.cuda.compile_ptx(kernel.py_func, signature, cc=capability)
            print(f"{capability[0]}.{capability[1]}  {name}: {len(code.splitlines())} lines of PTX")
    return 0


if __name__ == "__main__":
    sys.exit(main())
