"""An LSTM that tags words, and a GRU that spots a keyword in a few frames of sound."""

from torch import Tensor, nn

from tests.architectures.seeding import seeded

WORDS, WIDTH, FRAMES, BANDS = 50, 16, 6, 20


class Tagger(nn.Module):
    """A tag for each word, from both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 7))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0])


class KeywordSpotter(nn.Module):
    """A convolution over time, a GRU, and a decision from its last state. PyTorch unrolls a GRU in export."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(BANDS, WIDTH, 3, padding=1), nn.ReLU())
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, features: Tensor) -> Tensor:
        states = self.gru(self.conv(features.transpose(1, 2)).transpose(1, 2))[0]
        return self.head(states[:, -1])


def tagger() -> nn.Module:
    return seeded(Tagger)


def spotter() -> nn.Module:
    return seeded(KeywordSpotter)
