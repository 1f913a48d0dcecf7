"""A parser that decides step by step, with stack LSTMs (Dyer et al. 2015): shift a word, or reduce two phrases to one.

The next step depends on values, so in decoding the graph grows while it is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable

import vpps
from vpps.data import Tree, Vocabulary, synthetic_opinions
from vpps.nn import LSTM, MLP, Linear, State

SHIFT, REDUCE = 0, 1


class Parser:
    """Two LSTMs read the stack and the words to come; an MLP decides from their states.

    Args:
        n_words: rows of the embedding table.
        hidden: length of word vectors, phrases and states.
    """

    def __init__(self, model: vpps.Model, n_words: int, hidden: int = 32) -> None:
        self.hidden = hidden
        self.words = model.lookup("words", (n_words, hidden))
        self.stack = LSTM(model, hidden, hidden, name="stack")
        self.buffer = LSTM(model, hidden, hidden, name="buffer")
        self.composition = Linear(model, 2 * hidden, hidden, name="composition")
        self.decision = MLP(model, 2 * hidden, hidden, 2, name="decision")

    @vpps.cell
    def compose(self, left: vpps.Expression, right: vpps.Expression) -> vpps.Expression:
        """Return the vector of a phrase of two parts."""
        return vpps.tanh(self.composition(vpps.concat([left, right])))

    @vpps.cell
    def scores(self, stack: vpps.Expression, buffer: vpps.Expression) -> vpps.Expression:
        """Return the scores of SHIFT and REDUCE, from the states of the two LSTMs."""
        return self.decision(vpps.concat([stack, buffer]))


class Parse:
    """An unfinished parse. The stack is a Python list; a pop returns to the LSTM's earlier state.

    Args:
        words: rows of the embedding table.
    """

    def __init__(self, parser: Parser, graph: vpps.Graph, words: Iterable[int]) -> None:
        self.parser = parser
        self.actions: list[int] = []
        nothing = graph.zeros(parser.hidden)
        self.stack: list[State] = [(nothing, nothing)]  # (h, c) after every phrase, from the bottom
        self.phrases: list[vpps.Expression] = []
        self.buffer: list[State] = [(nothing, nothing)]  # after every word, read from the last to the first
        self.ahead = [graph.lookup(parser.words, word) for word in words][::-1]  # the next word comes last
        for vector in self.ahead:
            self.buffer.append(parser.buffer.step(vector, *self.buffer[-1]))

    @property
    def allowed(self) -> list[int]:
        """Allowed actions; none at the end."""
        return [SHIFT] * bool(self.ahead) + [REDUCE] * (len(self.phrases) > 1)

    def scores(self) -> vpps.Expression:
        """Return the scores of both actions, (2,)."""
        return self.parser.scores(self.stack[-1][0], self.buffer[-1][0])

    def act(self, action: int) -> None:
        """Apply an action to the parse."""
        self.actions.append(action)
        if action == SHIFT:
            self.buffer.pop()
            self._push(self.ahead.pop())
        else:
            right, left = self._pop(), self._pop()
            self._push(self.parser.compose(left, right))

    def _push(self, phrase: vpps.Expression) -> None:
        self.stack.append(self.parser.stack.step(phrase, *self.stack[-1]))
        self.phrases.append(phrase)

    def _pop(self) -> vpps.Expression:
        self.stack.pop()
        return self.phrases.pop()


def loss(parser: Parser, graph: vpps.Graph, words: Iterable[int], actions: Iterable[int]) -> list[vpps.Expression]:
    """Return a loss per decision along the right actions (teacher forcing)."""
    parse, losses = Parse(parser, graph, words), []
    for action in actions:
        if len(parse.allowed) > 1:
            losses.append(vpps.cross_entropy(parse.scores(), action))
        parse.act(action)
    return losses


def parses(parser: Parser, handle: vpps.Handle, sentences: Iterable[Iterable[int]]) -> list[list[int]]:
    """Return the actions for all sentences, with one launch per decision of the longest."""
    graph = vpps.Graph()
    under_way = [Parse(parser, graph, words) for words in sentences]
    while True:
        for parse in under_way:
            while len(parse.allowed) == 1:
                parse.act(parse.allowed[0])
        open_ones = [parse for parse in under_way if parse.allowed]
        if not open_ones:
            return [parse.actions for parse in under_way]
        scores = handle.forward(graph, [parse.scores() for parse in open_ones])  # computes only new values
        for parse, found in zip(open_ones, scores, strict=True):
            parse.act(int(found.argmax()))


def right_way(tree: Tree) -> list[int]:
    """Return the actions that build a tree: its nodes in post-order."""
    return [REDUCE if children else SHIFT for children in tree.child_lists()]


def bracketed(tokens: Iterable[str], actions: Iterable[int]) -> str:
    """Return a sentence with the brackets of its actions."""
    ahead, stack = iter(tokens), list[str]()
    for action in actions:
        if action == SHIFT:
            stack.append(next(ahead))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(f"({left} {right})")
    return stack.pop()


def main() -> tuple[list[float], float]:
    """Return the loss per decision in every epoch, and the share of dev sentences with the right parse."""
    treebank = synthetic_opinions(300, 100)  # modifiers take the word behind them; the rest branches to the left
    vocabulary = Vocabulary.from_sentences(tree.tokens for tree in treebank.train)
    train, dev = (
        [([vocabulary[token] for token in tree.tokens], right_way(tree)) for tree in trees]
        for trees in (treebank.train, treebank.dev)
    )
    model = vpps.Model(seed=1)
    parser = Parser(model, len(vocabulary))
    losses = []
    with vpps.Handle(model, vpps.Adam(lr=0.01)) as handle:
        for _ in range(4):
            epoch = []
            for start in range(0, len(train), 20):
                graph = vpps.Graph()
                decisions = [x for example in train[start : start + 20] for x in loss(parser, graph, *example)]
                handle.fb(graph, vpps.mean(decisions))
                epoch.append(handle.sync_get_latest_loss())
            losses.append(sum(epoch) / len(epoch))
        found = parses(parser, handle, [words for words, _ in dev])
    right = sum(actions == gold for actions, (_, gold) in zip(found, dev, strict=True)) / len(dev)
    print("loss per decision:", *(f"{x:.3f}" for x in losses))
    print(f"{right:.2f} of the dev sentences are parsed without an error; the first one:")
    print(bracketed(treebank.dev[0].tokens, found[0]))
    return losses, right


if __name__ == "__main__":
    main()
