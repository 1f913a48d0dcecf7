"""Trains one Tree-LSTM with all processes of a launcher."""

import vpps
from vpps.data import graphs_of_trees, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment


def main():
    with vpps.distributed.init() as world:
        trees = graphs_of_trees(synthetic_treebank(n_train=64, n_dev=1).train)
        model = vpps.Model(seed=1)
        net = TreeLSTMSentiment(model, n_words=150, embedding=16, hidden=16)
        with vpps.Handle(model, vpps.Adam(lr=0.01), world=world) as handle:
            for epoch in range(3):
                for batch in trees.batches(16, seed=1, epoch=epoch, world=world):
                    graph = vpps.Graph()
                    handle.fb(graph, net.loss(graph, batch) * (1 / batch.whole))
                loss = handle.sync_get_latest_loss()
        if world.is_first:
            print(f"{world.size} ranks: loss {loss:.4f}")


if __name__ == "__main__":
    main()
