// Policy `depth`, from TensorFlow Fold: a stage per level of the whole graph. Level: longest distance from a leaf.
#pragma once

#include "policies/sinks_last.h"

struct Depth : SinksLast {};
