// Policy `depth`, from TensorFlow Fold: a stage for each level of the graph. Level: longest distance from a leaf.
#pragma once

#include "policies/sinks_last.h"

struct Depth : SinksLast {};
