"""Branches of a constant condition."""

from tests.unit.models.preparing.passes.cases import ROW, Case

YES = "t = Constant<value = bool {1}>()"
NO = "f = Constant<value = bool {0}>()"

BRANCHES = {
    "known_branch.names_that_clash": Case(
        graph=f"""{ROW} <float[4] w, float[4] u> {{ {YES} {NO}
            a = If(t) <
                then_branch = b1 () => (float[N,4] p) {{ h = Mul(x, w) p = Relu(h) }},
                else_branch = b2 () => (float[N,4] q) {{ h = Mul(x, u) q = Abs(h) }}>
            y = If(f) <
                then_branch = b3 () => (float[N,4] p) {{ h = Sub(a, w) p = Neg(h) }},
                else_branch = b4 () => (float[N,4] p) {{ h = Add(a, u) p = Tanh(h) }}> }}""",
        left=("Mul", "Relu", "Add", "Tanh"),
    ),
    "known_branch.equal_outputs": Case(
        graph=f"""{ROW} {{ {YES}
            r = Relu(x)
            a, b = If(t) <
                then_branch = b1 () => (float[N,4] n, float[N,4] m) {{ n = Neg(r) m = Neg(r) }},
                else_branch = b2 () => (float[N,4] p, float[N,4] q) {{ p = Abs(r) q = Neg(r) }}>
            y = Mul(a, b) }}""",
        left=("Relu", "Neg", "Neg", "Mul"),
    ),
    "known_branch.nested": Case(
        graph=f"""(float[N,4] x, bool c) => (float[N,4] y) {{ {YES} {NO}
            y = If(c) <
                then_branch = b1 () => (float[N,4] p) {{
                    p = If(t) <
                        then_branch = b2 () => (float[N,4] s) {{ h = Abs(x) s = Neg(h) }},
                        else_branch = b3 () => (float[N,4] v) {{ v = Exp(x) }}> }},
                else_branch = b4 () => (float[N,4] q) {{
                    q = If(f) <
                        then_branch = b5 () => (float[N,4] v) {{ v = Exp(x) }},
                        else_branch = b6 () => (float[N,4] s) {{ h = Relu(x) s = Neg(h) }}> }}> }}""",
        left=("If",),
    ),
}
