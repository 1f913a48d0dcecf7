"""A layer of vpps between an encoder and a classifier of PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

import vpps
import vpps.torch

H, N_WORDS, N_CLASSES = 16, 50, 3
TREES = [(((1, 2), 3), 0), ((4, (5, 6)), 2), ((1, (5, (2, 6))), 1)]  # a tree is a word or a pair, and a label

model = vpps.Model(seed=1)
U, b = model.parameter("U", (H, 2 * H)), model.parameter("b", (H,))


@vpps.cell
def compose(left, right):
    return vpps.tanh(U @ vpps.concat([left, right]) + b)


def state(leaves, tree):  # the state of a word or a pair
    return next(leaves) if isinstance(tree, int) else compose(state(leaves, tree[0]), state(leaves, tree[1]))


def words(tree):
    return [tree] if isinstance(tree, int) else words(tree[0]) + words(tree[1])


encoder = nn.Sequential(nn.Embedding(N_WORDS, 8), nn.Linear(8, H), nn.Tanh())
layer = vpps.torch.Module(model)
classifier = nn.Linear(H, N_CLASSES)


def loss_of(trees):
    vectors = encoder(torch.tensor([word for tree, _ in trees for word in words(tree)]))
    graph = vpps.Graph()  # one for every mini-batch
    leaves = iter(graph.rows(vectors, grad=True))
    roots = layer(graph, [state(leaves, tree) for tree, _ in trees])
    return F.cross_entropy(classifier(torch.stack(roots)), torch.tensor([label for _, label in trees]))


def main():
    vpps.torch.share_cores()  # PyTorch uses one thread, virtual processors the other cores
    optimizer = torch.optim.Adam(nn.ModuleList([encoder, layer, classifier]).parameters(), lr=0.01)
    for step in range(1, 31):
        loss = loss_of(TREES)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
