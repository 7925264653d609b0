"""All tables as one."""

from tests.unit.plan.cases.attention import ATTENTION
from tests.unit.plan.cases.convolutions import CONV
from tests.unit.plan.cases.joins import JOIN
from tests.unit.plan.cases.matrices import MATRIX
from tests.unit.plan.cases.moves import MOVE
from tests.unit.plan.cases.odd import ODD

CASES = {**CONV, **MATRIX, **JOIN, **MOVE, **ATTENTION, **ODD}
