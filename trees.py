# trees.py
import vpps

H = 64
model = vpps.Model(seed=1)
E = model.lookup("E", (100, H))
W, U = model.parameter("W", (3 * H, H)), model.parameter("U", (5 * H, 2 * H))
b = model.parameter("b", (5 * H,), init="zeros")
V = model.parameter("V", (2, H))


@vpps.cell
def leaf(word):
    i, o, u = vpps.split(W @ vpps.lookup(E, word), 3)
    c = vpps.sigmoid(i) * vpps.tanh(u)
    return c, vpps.sigmoid(o) * vpps.tanh(c)


@vpps.cell
def inner(c_left, h_left, c_right, h_right):
    i, o, u, fl, fr = vpps.split(U @ vpps.concat([h_left, h_right]) + b, 5)
    c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(fl) * c_left + vpps.sigmoid(fr) * c_right
    return c, vpps.sigmoid(o) * vpps.tanh(c)


def state(graph, tree):
    if isinstance(tree, int):
        return graph.call(leaf, tree)
    return inner(*state(graph, tree[0]), *state(graph, tree[1]))


TREES = [((1, 2), (3, (4, 5))), (6, (7, 8))]


def batches(size):
    """What vpps-inspect and vpps-profile ask for: the model, and graphs with their losses."""
    graph = vpps.Graph()
    losses = [vpps.cross_entropy(V @ state(graph, tree)[1], k) for k, tree in enumerate(TREES[:size])]
    return model, [(graph, vpps.mean(losses))]
