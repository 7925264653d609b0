"""What placement costs on a large graph, and what exporting costs over reading and writing the file.

python -m benchmarks.placement            print the table
python -m benchmarks.placement --write    and put it into benchmarks/RESULTS.md
"""

from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"
NODES, CHANNELS, ROUNDS = 5_000, 64, 5
MOST_SECONDS, MOST_RATIO = 5.0, 1.5
