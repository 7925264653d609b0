"""What tells that a model predicts tokens, whose logits may lose less."""

from ptq_cli.recover.ladder.goal import predicts_tokens
from tests.unit.plan.graphs import build

TOKENS = """(int64[N,L] ids) => (float[N,L,512] logits) <float[512,64] table, float[64,512] head> {
  [embed] e = Gather(table, ids) [head] logits = MatMul(e, head)
}"""


def test_logits_of_each_position_are_of_tokens_and_classes_of_words_are_not() -> None:
    assert predicts_tokens(build(TOKENS))
    assert not predicts_tokens(build(TOKENS.replace("512", "17")))
    assert not predicts_tokens(build(TOKENS.replace("N,L,512] logits", "N,M,512] logits")))
