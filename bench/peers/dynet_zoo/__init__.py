"""DyNet programs for vpps.zoo's networks, by task name; with equal weights, they compute equal losses.

    python bench/peers/dynet_zoo/check.py [--tasks NAME,...]

compares losses (before and after updates) and outputs with vpps, for both strategies.
"""

from __future__ import annotations

from peers.dynet_zoo.complete_trees import TreeFc
from peers.dynet_zoo.language import LstmLanguageModel
from peers.dynet_zoo.lattices import LatticeGru, LatticeLstm
from peers.dynet_zoo.program import DynetProgram
from peers.dynet_zoo.pyramids import TdLstm, TdRnn
from peers.dynet_zoo.taggers import BiLstmCharTagger, BiLstmTagger
from peers.dynet_zoo.translation import EncoderDecoder
from peers.dynet_zoo.trees import ChildSumTreeLstm, MvRnn, RvNN, TreeGru, TreeLstm, TwoTypeTreeLstm

PROGRAMS: dict[str, type[DynetProgram]] = {
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
    "lattice-lstm": LatticeLstm,
    "lattice-gru": LatticeGru,
    "fixed-lstm": LstmLanguageModel,
    "var-lstm": LstmLanguageModel,
    "nmt": EncoderDecoder,
}
