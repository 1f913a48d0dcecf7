"""A Tree-LSTM that tells whether a tree holds more even words than odd ones."""

import numpy as np

import vpps

H, N_WORDS = 64, 100
model = vpps.Model(seed=1)
E = model.lookup("E", (N_WORDS + 1, H))  # an embedding table; updates touch only the rows that were used
W = model.parameter("W", (3 * H, H))
U = model.parameter("U", (5 * H, 2 * H))
b = model.parameter("b", (5 * H,), init="zeros")
V = model.parameter("V", (2, H))


@vpps.cell
def leaf(word):
    i, o, u = vpps.split(W @ vpps.lookup(E, word), 3)
    c = vpps.sigmoid(i) * vpps.tanh(u)
    return vpps.sigmoid(o) * vpps.tanh(c), c


@vpps.cell
def inner(h_left, c_left, h_right, c_right):
    i, o, u, fl, fr = vpps.split(U @ vpps.concat([h_left, h_right]) + b, 5)
    c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(fl) * c_left + vpps.sigmoid(fr) * c_right
    return vpps.sigmoid(o) * vpps.tanh(c), c


def state(graph, tree):
    if isinstance(tree, int):
        return graph.call(leaf, tree)
    return inner(*state(graph, tree[0]), *state(graph, tree[1]))


def logits(graph, tree):
    h, _ = state(graph, tree)
    return V @ h


def mean_loss(graph, examples):
    return vpps.mean([vpps.cross_entropy(logits(graph, tree), label) for tree, label in examples])


# ---- data: a tree is a word or a pair of trees


def words(tree):
    return [tree] if isinstance(tree, int) else words(tree[0]) + words(tree[1])


def label_of(tree):
    return int(sum(1 - 2 * (word % 2) for word in words(tree)) > 0)


def grow(rng, n_words):
    if n_words == 1:
        return int(rng.integers(N_WORDS))
    left = int(rng.integers(1, n_words))
    return grow(rng, left), grow(rng, n_words - left)


def draw(n, seed):
    rng = np.random.default_rng(seed)
    trees = [grow(rng, int(rng.integers(3, 12))) for _ in range(n)]
    return [(tree, label_of(tree)) for tree in trees]


# ---- training


def main():
    train = draw(600, seed=1)
    with vpps.Handle(model, vpps.Adam(lr=0.01)) as handle:
        for epoch in range(5):
            total = 0.0
            for start in range(0, len(train), 25):
                batch = train[start : start + 25]
                graph = vpps.Graph()
                handle.fb(graph, mean_loss(graph, batch))
                total += handle.sync_get_latest_loss() * len(batch)
            print(f"epoch {epoch}: loss {total / len(train):.3f}")
    model.save("trees.safetensors")


# ---- for vpps-inspect and vpps-profile: the model, and graphs with their losses

TWO_TREES = [(((1, 2), (3, (4, 5))), 0), ((6, (7, 8)), 1)]


def batches(size):
    graph = vpps.Graph()
    return model, [(graph, mean_loss(graph, TWO_TREES[:size]))]


if __name__ == "__main__":
    main()
