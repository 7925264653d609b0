"""Which symbolic expressions of a .pt2 archive are plain arithmetic.

``torch.export.load`` hands each shape expression to ``sympy.sympify``, which evaluates it as Python. Only
what torch itself writes is let through: calls of known sympy functions on numbers and symbols, nested.
"""

import ast
import re

IDENTIFIER = re.compile(r"^[A-Za-z]\w*$")
LENGTH_LIMIT = 10_000
ALLOWED_NODES = (
    ast.Expression,
    ast.Call,
    ast.keyword,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
)
SYMPY = {
    "Abs",
    "Add",
    "And",
    "Eq",
    "Equality",
    "Float",
    "Ge",
    "GreaterThan",
    "Gt",
    "Integer",
    "Le",
    "LessThan",
}
SYMPY |= {"Lt", "Max", "Min", "Mod", "Mul", "Ne", "Not", "Or", "Pow", "Rational", "StrictGreaterThan"}
SYMPY |= {"StrictLessThan", "Symbol", "Unequality", "ceiling", "floor", "sqrt"}
TORCH = {"CeilDiv", "CeilToInt", "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Identity"}
TORCH |= {"IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "LShift", "ModularIndexing", "PowByNatural"}
TORCH |= {
    "PythonMod",
    "RShift",
    "RoundDecimal",
    "RoundToInt",
    "ToFloat",
    "TruncToFloat",
    "TruncToInt",
    "Where",
}
CALLABLE = SYMPY | TORCH


def is_arithmetic(expression: str) -> bool:
    """Tell whether evaluating the expression can do nothing but arithmetic.

    Edge case:
        Attributes, subscripts, lambdas, names with an underscore in front, calls of anything that is not
        known, and strings that are not identifiers make it false.

    Example:
        >>> is_arithmetic("Mul(Integer(2), Symbol('s0', positive=True, integer=True))")
        True
        >>> is_arithmetic("__import__('os').system('x')"), is_arithmetic("open('x')")
        (False, False)
    """
    if len(expression) > LENGTH_LIMIT:
        return False
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_allowed(node) for node in ast.walk(tree))


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in CALLABLE
    if isinstance(node, ast.Name):
        return bool(IDENTIFIER.match(node.id))
    if isinstance(node, ast.Constant):
        plain = isinstance(node.value, (bool, int, float))
        return plain or (isinstance(node.value, str) and bool(IDENTIFIER.match(node.value)))
    return isinstance(node, ALLOWED_NODES)
