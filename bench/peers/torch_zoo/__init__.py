"""PyTorch programs for vpps.zoo's networks, by task name; with equal weights, they compute equal losses."""

from __future__ import annotations

from peers.torch_zoo.complete_trees import TreeFc
from peers.torch_zoo.language import LstmLanguageModel
from peers.torch_zoo.lattices import LatticeGru, LatticeLstm
from peers.torch_zoo.program import TorchProgram
from peers.torch_zoo.pyramids import TdLstm, TdRnn
from peers.torch_zoo.taggers import BiLstmCharTagger, BiLstmTagger
from peers.torch_zoo.translation import EncoderDecoder
from peers.torch_zoo.trees import ChildSumTreeLstm, MvRnn, RvNN, TreeGru, TreeLstm, TwoTypeTreeLstm

PROGRAMS: dict[str, type[TorchProgram]] = {
    "tree-lstm": TreeLstm,
    "tree-lstm-child-sum": ChildSumTreeLstm,
    "tree-lstm-2type": TwoTypeTreeLstm,
    "tree-gru": TreeGru,
    "rvnn": RvNN,
    "mv-rnn": MvRnn,
    "td-rnn": TdRnn,
    "td-lstm": TdLstm,
    "tree-fc": TreeFc,
    "bilstm-tagger": BiLstmTagger,
    "bilstm-char-tagger": BiLstmCharTagger,
    "fixed-lstm": LstmLanguageModel,
    "var-lstm": LstmLanguageModel,
    "nmt": EncoderDecoder,
    "lattice-lstm": LatticeLstm,
    "lattice-gru": LatticeGru,
}
