"""The recursive network of net_in_torch.py in vpps."""

import vpps
from vpps.nn import Embedding, Linear

H, N_WORDS, N_CLASSES = 16, 50, 3
TREES = [(((1, 2), 3), 0), ((4, (5, 6)), 2), ((1, (5, (2, 6))), 1)]


class Net:
    def __init__(self, model):
        self.words = Embedding(model, N_WORDS, H, name="words")
        self.inner = Linear(model, 2 * H, H, name="compose")
        self.output = Linear(model, H, N_CLASSES, name="output")

    @vpps.cell  # a method as a cell has a program per instance
    def compose(self, left, right):
        return vpps.tanh(self.inner(vpps.concat([left, right])))

    def state(self, graph, tree):
        if isinstance(tree, int):
            return graph.lookup(self.words.table, tree)
        return self.compose(self.state(graph, tree[0]), self.state(graph, tree[1]))

    def __call__(self, graph, tree):
        return self.output(self.state(graph, tree))


def train(model, net, steps=3):
    losses = []
    with vpps.Handle(model, vpps.SGD(lr=0.1)) as handle:
        for _ in range(steps):
            graph = vpps.Graph()
            handle.fb(graph, vpps.mean([vpps.cross_entropy(net(graph, tree), label) for tree, label in TREES]))
            losses.append(handle.sync_get_latest_loss())
    return losses


if __name__ == "__main__":
    model = vpps.Model(seed=1)
    print(train(model, Net(model)))
