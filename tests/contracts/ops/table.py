"""All operators as one table."""

from tests.contracts.ops.convolutions import CONVOLUTIONS
from tests.contracts.ops.elementwise import ELEMENTWISE
from tests.contracts.ops.matrices import MATRICES
from tests.contracts.ops.moves import MOVES
from tests.contracts.ops.normalizations import NORMALIZATIONS
from tests.contracts.ops.recurrent import RECURRENT

OPERATORS = CONVOLUTIONS | MATRICES | RECURRENT | ELEMENTWISE | MOVES | NORMALIZATIONS
