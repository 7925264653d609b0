"""Small graphs whose Pad or Resize names its axes, and others that name none."""

from tests.unit.models.preparing.passes.cases import Case

IMAGE = "(float[N,3,5,6] x) => (float[] y)"

AXES = {
    "named_axes.pad": Case(
        graph=f"""{IMAGE} <int64[4] p = {{1,0,2,3}}, int64[2] a = {{-1,2}}, float v> {{
            y = Pad<mode="constant">(x, p, v, a) }}""",
        left=("Pad",),
        constants={"v": 2.0},
    ),
    "named_axes.pad_computed": Case(
        graph=f"""{IMAGE} <int64[2] a = {{3,2}}> {{
            s = Shape<start=2>(x)
            p = Concat<axis=0>(s, s)
            y = Pad(x, p, , a) }}""",
        left=("Shape", "Concat", "ScatterElements", "Pad"),
    ),
    "named_axes.resize_by_scales": Case(
        graph=f'{IMAGE} <float[2] k> {{ y = Resize<mode="linear", antialias=1, axes=[2,3]>(x, , k) }}',
        left=("Resize",),
        constants={"k": [0.5, 2.0]},
    ),
    "named_axes.resize_to_sizes": Case(
        graph=f"{IMAGE} <int64[2] k = {{4,9}}> {{ y = Resize<axes=[-1,2]>(x, , , k) }}",
        left=("Shape", "ScatterElements", "Resize"),
    ),
    "named_axes.resize_of_a_part": Case(
        graph=f"""{IMAGE} <float[4] r, int64[2] k = {{4,9}}> {{
            y = Resize<axes=[2,3], coordinate_transformation_mode="tf_crop_and_resize">(x, r, , k) }}""",
        left=("Shape", "ScatterElements", "Resize"),
        constants={"r": [0.25, 0.0, 1.0, 0.75]},
    ),
}
