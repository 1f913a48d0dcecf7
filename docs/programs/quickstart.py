"""A recursive network over trees of any shape, from nothing to its predictions."""

import vpps

H, N_WORDS, N_CLASSES = 64, 1000, 5
TREES = [(((1, 2), 3), 0), ((4, (5, 6)), 3), ((1, (5, (2, 6))), 1)]  # a word or a pair of trees, and its class

model = vpps.Model(seed=1)
E = model.lookup("words", (N_WORDS, H))  # an embedding table: sparse updates
U, b = model.parameter("U", (4 * H, 2 * H)), model.parameter("b", (4 * H,))
V = model.parameter("V", (N_CLASSES, H))


@vpps.cell  # traced once; a call is one vertex of the graph
def node(h_left, c_left, h_right, c_right):
    i, f, o, u = vpps.split(U @ vpps.concat([h_left, h_right]) + b, 4)
    c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f) * (c_left + c_right)
    return vpps.sigmoid(o) * vpps.tanh(c), c


def state(graph, tree):
    if isinstance(tree, int):
        return graph.lookup(E, tree), graph.zeros(H)
    return node(*state(graph, tree[0]), *state(graph, tree[1]))


def main():
    with vpps.Handle(model, vpps.Adam(lr=0.01)) as handle:
        for step in range(1, 31):
            graph = vpps.Graph()  # a new one for every mini-batch
            losses = [vpps.cross_entropy(V @ state(graph, tree)[0], label) for tree, label in TREES]
            handle.fb(graph, vpps.mean(losses))  # forward, backward and update in one launch; returns at once
            if step % 10 == 0:
                print(f"step {step}: loss {handle.sync_get_latest_loss():.4f}")
        graph = vpps.Graph()
        print(handle.forward(graph, [vpps.softmax(V @ state(graph, TREES[0][0])[0])])[0].round(2))


if __name__ == "__main__":
    main()
