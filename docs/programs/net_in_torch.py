"""A recursive network over binary trees in PyTorch, vertex by vertex."""

import torch
from torch import nn
from torch.nn import functional as F

H, N_WORDS, N_CLASSES = 16, 50, 3
TREES = [(((1, 2), 3), 0), ((4, (5, 6)), 2), ((1, (5, (2, 6))), 1)]  # a tree is a word or a pair, and a label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(N_WORDS, H)
        self.compose = nn.Linear(2 * H, H)
        self.output = nn.Linear(H, N_CLASSES)

    def state(self, tree):
        if isinstance(tree, int):
            return self.words.weight[tree]
        return torch.tanh(self.compose(torch.cat([self.state(tree[0]), self.state(tree[1])])))

    def forward(self, tree):
        return self.output(self.state(tree))


def train(net, steps=3):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    labels = torch.tensor([label for _, label in TREES])
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(torch.stack([net(tree) for tree, _ in TREES]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print(train(Net()))
