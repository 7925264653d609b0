"""The rows of the tables that an input's values are indices of."""

import onnx
import onnx_ir as ir

from ptq_cli.core.tensors import longest_of, rows_of
from ptq_cli.models.loading.onnx_source import input_specs
from tests.each_case import each_case

GRAPHS = {
    "embedding": ("y = Gather(table, ids)", 7),
    "through-casts": ("a = Cast<to=7>(ids) b = Unsqueeze(a, zero) y = Gather(table, b)", 7),
    "the-smaller": ("x = Gather(table, ids) z = Gather(small, ids) y = Concat<axis=0>(x, z)", 3),
    "another-axis": ("y = Gather<axis=1>(table, ids)", None),
    "an-input-as-table": ("y = Gather(given, ids)", None),
    "no-gather": ("y = Cast<to=1>(ids)", None),
}


@each_case("name", GRAPHS)
def test_the_rows_of_a_table_are_those_that_a_gather_reads(name: str) -> None:
    body, rows = GRAPHS[name]
    tables = "float[7,2] table = {" + ",".join(["1"] * 14) + "}, float[3,2] small = {1,1,1,1,1,1}"
    text = (
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"g (int64[n] ids, float[k,2] given) => (float[a] y) <{tables}, int64[1] zero = {{0}}> {{ {body} }}"
    )
    specs = {spec.name: spec for spec in input_specs(ir.from_proto(onnx.parser.parse_model(text)))}
    assert rows_of(specs["ids"]) == rows
    assert rows_of(specs["given"]) is None


POSITIONS = {
    "range": ("a = Shape(ids) t = Gather(a, first) p = Range(first, t, one) q = Gather(table, p)", 7),
    "a-buffer": ("a = Shape(ids) p = Slice(numbers, zero, a) q = Gather(table, p)", 4),
    "a-mask": ("p = CumSum(ids, first) q = Gather(table, p)", 7),
    "types": ("a = Shape(ids) p = Slice(zeros, zero, a) q = Gather(small, p)", None),
    "computed": ("p = Add(ids, one) q = Gather(table, p)", None),
}


@each_case("name", POSITIONS)
def test_a_table_of_positions_is_read_at_places_that_are_counted(name: str) -> None:
    body, longest = POSITIONS[name]
    tables = "float[7,2] table = {" + ",".join(["1"] * 14) + "}, float[3,2] small = {1,1,1,1,1,1}"
    counts = "int64[4] numbers = {0,1,2,3}, int64[4] zeros = {0,0,0,0}, int64[1] zero = {0}"
    text = (
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (int64[n] ids) => (float[a,b] q, float[c,d] y) "
        f"<{tables}, {counts}, int64 first = {{0}}, int64 one = {{1}}> {{ {body} y = Gather(small, ids) }}"
    )
    (spec,) = input_specs(ir.from_proto(onnx.parser.parse_model(text)))
    assert longest_of(spec) == longest
