"""Table of names, arguments and values that users of PyTorch, DyNet, JAX and TensorFlow try, with hints for vpps."""

from __future__ import annotations

PHRASES = {
    "{evaluates}": "handle.forward(graph, [x]) evaluates it, and after fb handle.value(x) reads it",
    "{trains}": "handle.fb(graph, loss) runs forward, backward and the update",
    "{gradients}": "handle.gradients(graph, loss) returns the gradients of the parameters",
    "{elsewhere}": "the handle chooses the device: vpps.Handle(model, target='cuda')",
    "{rounds}": "the handle sets the precision of products: vpps.Handle(model, precision='bf16')",
    "{parameters}": "the model has the parameters: for p in model, each with p.name, p.shape and p.numpy()",
}
"""Sentences that several hints share."""

# Classes or a package head each section. Each line lists names, then their hint; {name} is the name that was tried.
NAMES = """
[Expression Rows]
eq: vpps.eq(x, y) compares
gt lt ge le: the operators compare, such as x > y
any all: vpps.max(x) and vpps.min(x) of a condition are 1 or 0
unbind: vpps.split(x, n) cuts it into n parts
masked_select scatter scatter_: vpps.where(condition, a, b) chooses
clamp_ relu_ sub_ div_: expressions never change; y = x + 1 makes a new one
new_zeros new_ones new_tensor set: graph.input(array) brings data into a graph
topk sort cumsum prod flip argsort: vpps has no such function; x[k] is an element, A[k] a row
batch: rows[k] is one of several rows
value npvalue vec_value scalar_value item tolist cpu numpy: {evaluates}
detach data: vpps.stop_gradient(x) lets no gradient through; {evaluates}
backward: {trains}
requires_grad requires_grad_ retain_grad: vpps.stop_gradient(x) lets no gradient through; graph.input(array, \
grad=True) has handle.input_gradient(x)
clone copy: expressions never change, so no copy is needed
forward tensor_value: {evaluates}
is_cuda is_leaf: all values are float32; {elsewhere}
permute swapaxes mT H: x.T is the transpose
expand repeat tile broadcast_to: scalars, and vectors over the rows of a matrix, broadcast automatically
index_select gather take: x[i] and x[a:b] are parts; vpps.pick(x, i) takes a position of each vertex
float double half long int bool astype type: all values are float32
contiguous: nothing to do: use x itself
fill_ zero_ add_ mul_ copy_: expressions never change; y = x + 1 makes a new one
register_hook: {gradients}
[Expression Rows Parameter]
grad gradient: {gradients}
size dim ndim numel: x.shape is its shape
sum mean max min exp log sqrt square abs tanh sigmoid relu gelu softmax log_softmax dot reshape clamp split argmax \
logsumexp maximum minimum outer elu silu softplus sin cos leaky_relu dropout layer_norm stop_gradient where norm \
cosine hinge pick cross_entropy squared_distance: that is a function: vpps.{name}
t transpose: x.T is the transpose
view unsqueeze squeeze flatten: vpps.reshape(x, shape) gives it another shape
chunk: vpps.split(x, n) cuts it into n parts
pow: write x ** 2 or x ** 0.5
masked_fill: vpps.where(condition, a, b) chooses
dtype: all values are float32
[Expression Rows Parameter Model Layer]
device: {elsewhere}
[Parameter]
value npvalue vec_value scalar_value item tolist cpu data detach: p.numpy() is a copy of its weights, and \
p.assign(array) replaces them
copy_ set_value: p.assign(array) replaces its weights
requires_grad requires_grad_: p.trainable = False freezes it
as_array: p.numpy() is a copy of its weights
grad_as_array: {gradients}
zero scale clip_inplace: p.assign(array) replaces its weights
is_updated set_updated: p.trainable = False freezes it
expr: use the parameter itself as an operand: W @ x
init_row row_as_array rows_as_array init_from_array: p.numpy() is a copy of its weights, and p.assign(array) replaces \
them
batch: graph.lookup(table, array) gives rows
[Model Handle Layer]
parameters named_parameters: {parameters}
train eval: handle.fb trains, and handle.forward evaluates, without dropout
cpu: {elsewhere}
[Model]
count_params numel summary: model.n_weights counts them, and print(model) is a table of them
modules children: {parameters}
half double bfloat16: all weights are float32; {rounds}
add_parameters: model.parameter(name, shape) declares one
add_lookup_parameters: model.lookup(name, shape) declares one
add_subcollection: with model.scope(name): prefixes the names of parameters
parameters_list lookup_parameters_list pl trainable_variables weights variables get_weights: {parameters}
parameters_from_numpy lookup_parameters_from_numpy add_parameters_from_numpy: model.parameter(name, array.shape, \
init=array)
set_weight_decay set_weight_decay_lambda get_weight_decay: the optimizer has it: vpps.SGD(lr=0.1, weight_decay=1e-4)
populate save_all load_all save_weights load_weights: model.save(path) writes, model.restore(path) reads
register_parameter register_buffer add_module add_weight: model.parameter(name, shape) declares one
fit compile predict evaluate train_on_batch: vpps.Handle(model, vpps.Adam(lr=0.01)) trains by handle.fb(graph, loss) \
and evaluates by handle.forward(graph, [x])
init apply: declaring a parameter initialises it; cells use it directly, W @ x
set_weights: model[name].assign(array) sets one parameter
[Model Layer]
forward: cells and functions of yours compute, and handle.forward(graph, [x]) evaluates
requires_grad_: p.trainable = False freezes one, for each p of the model
[Layer]
weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 kernel weights: layer.state_dict() has copies by PyTorch's names
init_hidden hidden cell: graph.zeros(n) gives the first h and c; layers with begin need none
from_pretrained: Embedding(model, *array.shape, init=array)
weight bias: parameters are attributes such as layer.W; layer.state_dict() copies them by PyTorch's names, and \
layer.load replaces them
load_state_dict: layer.load(weights) takes a state_dict of PyTorch
initial_state init_state: graph.zeros(n) gives the first h and c; layers with begin need none
add_input add_inputs transduce start_new_sequence: h, c = lstm.step(x, h, c) is the next state; lstm.sequence(graph, \
xs) reads a list
set_dropout set_dropouts disable_dropout: call vpps.dropout(x, rate) in your cell; it is off in handle.forward
get_parameters param_collection parameters_list trainable_variables: {parameters}
reset_parameters: model.parameter(name, shape, init=...) sets the initial values
flatten_parameters: nothing to do: the handle packs weights
apply register_parameter register_buffer: model.parameter(name, shape) declares one
output: the cell returns it: h, c = lstm.step(x, h, c)
[Handle]
get_last_loss: handle.sync_get_latest_loss() is the latest one
save load restore: the model has the weights: model.save(path), model.restore(path)
loss: handle.sync_get_latest_loss() is the loss of the latest fb; fb returns the loss of the call before
device: it is called handle.target
dtype: handle.precision is the precision of products; all else is float32
lr learning_rate: handle.optimizer.lr = 0.01 sets the rate; lr may be a schedule, too
clip: handle.clip_norm = 5.0 bounds the global norm of all gradients
update_epoch: use a schedule: vpps.Adam(lr=lambda step: ...)
set_clip_threshold get_clip_threshold: handle.clip_norm = 5.0 bounds the global norm of all gradients
set_learning_rate: handle.optimizer.lr = 0.01 sets the rate
restart status set_sparse_updates: table updates are sparse; vpps.Handle(model, optimizer) starts again
fit train_step train_on_batch minimize run run_step: {trains}
predict evaluate: {evaluates}
loss_value get_loss: handle.sync_get_latest_loss() is the latest one
[Model Handle]
state_dict: model.numpy() copies all weights by name, and model.save(path) writes the state, too
load_state_dict: model.restore(path) reads what model.save wrote, model[name].assign(array) sets one parameter, and \
layers of vpps.nn load what PyTorch's have: layer.load(weights)
[Expression Rows Parameter Model Handle Layer]
to cuda: {elsewhere}
[Model Handle Optimizer]
zero_grad: nothing to do: gradients are reset at each step; handle.fb(graph, loss, accumulate=True) adds them up
[Handle Optimizer]
step update: {trains}
[Optimizer]
get_lr get_last_lr: optimizer.lr is the rate, or the schedule
param_groups add_param_group: groups={'words': {'lr': 0.01}} gives parameters rates by their names
state_dict load_state_dict: the model has the moments: model.save(path) writes and model.restore(path) reads them
learning_rate: optimizer.lr = 0.01 sets the rate, or a schedule: a function of the update's number
minimize apply_gradients update_params apply_gradient: {trains}
init: nothing to do: the model has the moments, which begin at zero
set_learning_rate: optimizer.lr = 0.01 sets the rate
set_clip_threshold clipnorm: vpps.Handle(model, optimizer, clip_norm=5.0)
[Adam]
betas: they are optimizer.beta1 and optimizer.beta2
[vpps]
view unsqueeze squeeze flatten ravel: vpps.reshape(x, shape) gives it another shape
chunk unbind tensor_split: vpps.split(x, n) cuts it into n parts
masked_fill masked_select: vpps.where(condition, a, b) chooses
index_select take: x[i] and x[a:b] are parts; vpps.pick(x, i) takes a position of each vertex
size numel ndim: x.shape is its shape
item value npvalue: {evaluates}
backward: {trains}
LongTensor FloatTensor IntTensor: graph.input(array) brings data into a graph
float32 float64 int32 int64 long double: all values are float32; ints are Python's and NumPy's
enable_grad set_grad_enabled: handle.fb and handle.gradients compute gradients, handle.forward does not
Module Sequential ModuleList: a class of yours holds parameters, and its methods may be cells: @vpps.cell
Dropout: that is a function: vpps.dropout(x, rate)
ReLU Tanh Sigmoid GELU SiLU: that is a function, such as vpps.relu
CrossEntropyLoss: that is a function: vpps.cross_entropy(logits, label)
MSELoss: that is a function: vpps.mse(x, y)
BCEWithLogitsLoss: that is a function: vpps.binary_cross_entropy_with_logits(logits, targets)
MultiheadAttention: vpps.nn.attend(query, keys, values) is one head
RNN RNNCell LSTMCell GRUCell: vpps.nn.LSTM(model, input_size, hidden_size).step is a cell
utils linalg: functions are in vpps, such as vpps.norm
no_grad inference_mode: handle.forward(graph, [x]) computes no gradients
tensor Tensor as_tensor from_numpy inputTensor: graph.input(array) brings data into a graph
save load: model.save(path) writes a checkpoint, and model.restore(path) reads it
manual_seed: vpps.Model(seed=1) seeds initial values and dropout
device cuda: {elsewhere}
bfloat16 float16 half amp autocast GradScaler: {rounds}
ParameterCollection: it is called vpps.Model()
zeros: graph.zeros(n) is a vector of zeros
pow: there are x ** 2 and x ** 0.5
optim: optimizers are classes in vpps, such as vpps.Adam
renew_cg ComputationGraph: every mini-batch has a vpps.Graph() of its own
Embedding Linear LayerNorm LSTM GRU MLP BiLSTM CRF NaryTreeLSTM ChildSumTreeLSTM NaryTreeGRU: it is vpps.nn.{name}
LSTMBuilder VanillaLSTMBuilder CompactVanillaLSTMBuilder FastLSTMBuilder: vpps.nn.LSTM(model, input_size, hidden_size)
CoupledLSTMBuilder SparseLSTMBuilder: vpps.nn.LSTM(model, input_size, hidden_size) is the standard LSTM
GRUBuilder: vpps.nn.GRU(model, input_size, hidden_size)
SimpleRNNBuilder RNNBuilder: write it as a cell: vpps.tanh(W @ x + U @ h + b); see @vpps.cell
BiRNNBuilder: vpps.nn.BiLSTM(model, input_size, hidden_size)
BidirectionalTreeLSTMBuilder UnidirectionalTreeLSTMBuilder TreeLSTMBuilder: vpps.nn.ChildSumTreeLSTM, \
vpps.nn.NaryTreeLSTM
SoftmaxBuilder StandardSoftmaxBuilder: vpps.cross_entropy(W @ h + b, i) is its loss
ClassFactoredSoftmaxBuilder HierarchicalSoftmaxBuilder: add two vpps.cross_entropy: of the class, and of the word in \
it
StackedRNNState RNNState: a state is a tuple (h, c): h, c = lstm.step(x, h, c)
SimpleSGDTrainer CyclicalSGDTrainer: vpps.Handle(model, vpps.SGD(lr=0.1)); lr may be a function of the step
MomentumSGDTrainer: vpps.Handle(model, vpps.Momentum(lr=0.01, momentum=0.9))
AdamTrainer AmsgradTrainer: vpps.Handle(model, vpps.Adam(lr=0.001))
AdagradTrainer: vpps.Handle(model, vpps.Adagrad(lr=0.1))
RMSPropTrainer AdadeltaTrainer EGTrainer Trainer: vpps.Handle(model, vpps.RMSprop(lr=0.001)), or another optimizer of \
vpps
Adadelta Adamax NAdam RAdam LBFGS Lion Adafactor: vpps has SGD, Momentum, Nesterov, Adam, AdamW, Adagrad and RMSprop
lr_scheduler StepLR LambdaLR CosineAnnealingLR exponential_decay: vpps.Adam(lr=lambda step: ...): the rate may be a \
function
clip_grad_norm_ clip_grad_norm clip_by_global_norm: vpps.Handle(model, clip_norm=5.0) bounds the norm of all gradients
Parameters LookupParameters add_parameters add_lookup_parameters: model.parameter(name, shape), model.lookup(name, \
shape)
parameter const_parameter const_lookup: use the parameter itself as an operand, W @ x; vpps.stop_gradient(x) lets no \
gradient through
lookup_batch pick_batch pickneglogsoftmax_batch hinge_batch: functions take rows: vpps.cross_entropy(rows, labels)
pick_batch_elem pick_batch_elems concatenate_to_batch sum_batches mean_batches: there is no batch dimension, but \
rows: graph.rows(array)
max_batches moment_batches std_batches dropout_batch dropout_dim block_dropout: there is no batch dimension: write \
one example
scalarInput vecInput inputVector matInput inputMatrix constant array asarray: graph.input(array) brings data into a \
graph
sparse_inputTensor placeholder Constant: graph.input(array) brings data into a graph
ones eye full arange zeros_like ones_like full_like: graph.input(array) brings data into a graph, such as np.ones(n)
random_normal random_uniform random_bernoulli random_gumbel rand randn randint normal uniform: draw with NumPy: \
graph.input(array)
noise: draw with NumPy: x + graph.input(array)
random PRNGKey seed reset_random_seed set_seed set_random_seed: vpps.Model(seed=1) seeds initial values and dropout
cg cg_version cg_checkpoint cg_revert print_text_graphviz get_default_graph: every mini-batch has a vpps.Graph() of \
its own; graph.draw() shows it
DynetParams init_params: options are arguments of vpps.Handle, such as target='cuda'
to_device device_put: {elsewhere}
ConstInitializer GlorotInitializer IdentityInitializer NormalInitializer UniformInitializer: model.parameter(name, \
shape, init='normal'); init is a name, number, array or function
NumpyInitializer PyInitializer SaxeInitializer FromFileInitializer initializers: model.parameter(name, shape, \
init=array); init is a name, number, array or function
grad value_and_grad jacobian GradientTape gradients autograd: {gradients}
jit compile function tf_function: cells are compiled when they are first called: @vpps.cell
vmap pmap map_fn: graph.map(cell, inputs={'x': array}), or a cell on rows: cell(graph.rows(array))
scan cond while_loop fori_loop switch lax: Python's own loops and conditions build the graph; a cell is one step
remat: vpps stores the values that backward needs
tree_map tree_util custom_vjp custom_jvp numpy jnp: vpps has its own functions, such as vpps.tanh; see dir(vpps)
Variable get_variable: model.parameter(name, shape) declares one
variable_scope name_scope: with model.scope(name): prefixes the names of parameters
Session run: handle.forward(graph, [x]) evaluates, and handle.fb(graph, loss) trains
Block Compiler Composition Pipe Function InputTransform Record OneOf ForwardDeclaration Loom: Python builds the \
graph, and vpps batches calls of a cell, @vpps.cell
Map Fold Reduce AllOf Concat Metric: Python's loops build the graph, and vpps batches calls of a cell, \
@vpps.cell
DataLoader Dataset TensorDataset: vpps.data.GraphSet keeps graphs, and its batches(size) are mini-batches
set_num_threads get_num_threads: vpps.Handle(model, vps=4) has 4 threads
functional F: functions are in vpps, such as vpps.relu
einsum tensordot kron: products are W @ x, A @ B, vpps.dot(x, y) and vpps.outer(x, y)
weight_norm: divide W @ x by norms of rows, computed once per graph: vpps.norm(W[k])
erf lgamma sinh asin acos atan asinh acosh atanh arcsin arccos arctan floor ceil round: vpps has no such function
cumsum cumprod prod sort argsort topk kmax_pooling fold_rows kmh_ngram inverse logdet det: vpps has no such function
conv1d conv2d maxpooling2d filter1d_narrow circ_conv circ_corr: vpps has no convolution: a cell on each window is \
one, W @ vpps.concat(window)
sparsemax constrained_softmax strided_select select_rows select_cols contract3d_1d: vpps has no such function; A[k] \
is a row, A.T[k] a column
isnan isfinite isinf: vpps.Handle(model, on_nonfinite='raise') raises if a loss or gradient is not finite
logsumexp_dim: vpps.logsumexp(x) of a vector, or of a list element by element
pad_sequence pack_padded_sequence: nothing is padded: every graph has the length of its example
linear: use the operators: W @ x + b
one_hot: vpps.lookup(table, i) is a row of a table; graph.input(np.eye(n)[i]) is the vector
embedding: model.lookup(name, shape) declares a table, graph.lookup(table, i) is a row
multi_head_attention scaled_dot_product_attention: vpps.nn.attend(query, keys, values) is attention of one head
[vpps.nn]
relu gelu softmax log_softmax sigmoid tanh silu elu leaky_relu softplus logsumexp dropout layer_norm cross_entropy: \
that is a function: vpps.{name}
Module ModuleList: a class of yours holds parameters of a model, and its methods may be cells: @vpps.cell
Parameter: model.parameter(name, shape) declares one
Sequential: vpps.nn.MLP has a hidden layer; a function of yours calls layers one after the other
Dropout: that is a function: vpps.dropout(x, rate)
LSTMCell: it is vpps.nn.LSTM(model, input_size, hidden_size).step
GRUCell: it is vpps.nn.GRU(model, input_size, hidden_size).step
functional: functions are in vpps, such as vpps.relu
CrossEntropyLoss: that is a function: vpps.cross_entropy(logits, label)
MSELoss: that is a function: vpps.mse(x, y)
BCEWithLogitsLoss: that is a function: vpps.binary_cross_entropy_with_logits(logits, targets)
ReLU Tanh Sigmoid GELU: that is a function, such as vpps.relu
MultiheadAttention Transformer TransformerEncoder TransformerEncoderLayer: vpps.nn.attend(query, keys, values) is one \
head; heads are parts of vectors, vpps.split, joined by vpps.concat
RNN RNNCell RNNBase: write it as a cell: vpps.tanh(W @ x + U @ h + b); see @vpps.cell
Conv1d Conv2d MaxPool1d MaxPool2d AvgPool1d Unfold: vpps has no convolution: a cell on each window is one, W @ \
vpps.concat(window)
BatchNorm1d BatchNorm2d GroupNorm InstanceNorm1d RMSNorm: vpps.layer_norm(x) normalises a vector: there is no batch \
dimension
Bilinear: that is a function: vpps.bilinear(x, W, y, outputs)
EmbeddingBag: vpps.mean([embedding(graph, i) for i in words])
Identity Flatten Unflatten Upsample: vpps.reshape(x, shape) gives another shape
ModuleDict ParameterList ParameterDict: use a list or dict of your own: the model has the parameters, by name
DataParallel: every process has a shard of the batch: see vpps.distributed
init: model.parameter(name, shape, init='glorot_uniform'); see vpps.init
utils: vpps.Handle(model, clip_norm=5.0) clips; graphs need no padding
CTCLoss TripletMarginLoss CosineEmbeddingLoss GaussianNLLLoss: write it as a formula of functions such as vpps.norm, \
vpps.relu and vpps.logsumexp
KLDivLoss: that is a function: vpps.kl_div(log_probabilities, targets)
LeakyReLU: that is a function: vpps.leaky_relu(x, slope)
Softmax Softmax2d: that is a function: vpps.softmax(x)
LogSoftmax: that is a function: vpps.log_softmax(x)
ELU SiLU Softplus: that is a function, such as vpps.elu
Layer Model Dense: vpps.nn.Linear(model, input_size, output_size), and functions of yours around it
[Graph]
loss: handle.sync_get_latest_loss() is the loss of the latest fb
num_nodes number_of_nodes nodes: len(graph) is the number of vertices
add_node add_nodes add_edges edges ndata edata: calls of cells make vertices; graph.map takes children as arrays
compute: {evaluates}
backward: {trains}
forward value npvalue run eval: {evaluates}
parameter parameters: use a parameter itself as an operand: W @ x
inputTensor inputVector scalarInput tensor constant placeholder add_input: graph.input(array) brings data in
ones: graph.input(array) brings data in, such as np.ones(n)
embedding: graph.lookup(table, i) is a row of a table
renew clear reset renew_cg version: every mini-batch has a vpps.Graph() of its own
sum mean tanh sigmoid softmax concat cross_entropy dropout: that is a function: vpps.{name}
"""

# Classes, functions or methods head each section. Each line has keyword arguments ("-": other calls), then their hint.
ARGUMENTS = """
[SGD Momentum Nesterov Adam AdamW Adagrad RMSprop]
learning_rate: it is called lr
params parameters model: the handle has the model: vpps.Handle(model, vpps.Adam(lr=0.01))
[Adam AdamW]
betas beta_1 beta_2 b1 b2: they are called beta1 and beta2
epsilon: it is called eps
amsgrad: vpps.Adam is the rule without it
[RMSprop]
alpha decay: it is called rho
[SGD RMSprop]
momentum nesterov: use vpps.Momentum(lr=0.1, momentum=0.9) or vpps.Nesterov
[Handle]
lr learning_rate weight_decay: it belongs to the optimizer: vpps.Handle(model, vpps.Adam(lr=0.01))
device: {elsewhere}
dtype amp autocast mixed_precision: precision='bf16' rounds the factors of products
layout: removed; the rows of a step come in the order in which its vertices were recorded
[Passes]
common_subexpressions constants dead_outputs alignment cell_layout: removed; this pass always runs
recompute: removed; what backward reads is always stored
[ChipOptions]
blocks_per_sm: removed, as two blocks on a multiprocessor were hardly faster than one; leave it out
gradients: removed, as all gradients are summed in tiles in memory; leave it out
transposed: removed, as transposes are on the chip, or with ownership='round-robin' partial sums replace them; leave \
it out
products tile: removed, as the planner chooses it; leave it out
[dropout]
p: it is called rate
training train: it is on in handle.fb, and off in handle.forward
[softmax log_softmax logsumexp]
dim axis: it works on the elements of a vector, or of each row of rows
[softmax log_softmax]
-: it works on the elements of a vector, or of each row of rows
[sum mean max min]
dim axis keepdim: it works on all elements of one expression, or on a list or rows
[max min]
-: use vpps.{owner}imum(x, y) for two expressions, or vpps.{owner}([x, y]) for a list
[concat stack]
dim axis: concat joins vectors end to end and matrices row after row, stack makes rows
[concat stack sum mean logsumexp]
-: expressions come in a list: vpps.{owner}([x, y])
[norm]
p ord dim axis: it is the Euclidean norm of all elements; vpps.sum(abs(x)) and vpps.max(abs(x)) are others
[clamp]
min max: they are called low and high
[split]
split_size_or_sections dim axis: vpps.split(x, n) makes n equal parts; x[a:b] is any part
[cross_entropy]
ignore_index: leave these rows out: keep = labels != -100; vpps.cross_entropy(logits[keep], labels[keep])
label_smoothing: 0.9 * vpps.cross_entropy(x, i) + 0.1 * (vpps.logsumexp(x) - vpps.mean(x)) smooths by 0.1
weight: multiply the loss: vpps.cross_entropy(rows, labels) * graph.rows(weights[labels])
[cross_entropy binary_cross_entropy_with_logits mse kl_div]
reduction size_average reduce: it is the loss of one example; vpps.mean and vpps.sum reduce a list or rows of them
[binary_cross_entropy_with_logits]
weight pos_weight: multiply the loss by graph.input(weight)
[leaky_relu]
negative_slope: it is called slope
[gelu]
approximate: it is the tanh form
[layer_norm]
normalized_shape weight bias: vpps.nn.LayerNorm(model, size) has weight and bias
[LayerNorm]
normalized_shape: LayerNorm(model, size)
elementwise_affine: vpps.layer_norm(x) has no parameters
[CRF]
num_tags: CRF(model, n_tags)
[BiLSTM]
num_layers layers: make one object per layer: high(graph, chains, vpps.concat(low(graph, chains, x)))
dropout: call vpps.dropout(x, rate) between layers; it is off in handle.forward
[LSTM GRU BiLSTM]
batch_first: there is no batch dimension: call the layer with graph, chains and x, a row for every vertex
bias: layers always have a bias
hidden_dim input_dim: {owner}(model, input_size, hidden_size)
[LSTM GRU]
layers: it is called num_layers
bidirectional: vpps.nn.BiLSTM(model, input_size, hidden_size) reads both ways
[LSTM GRU BiLSTM MLP Linear LayerNorm CRF Embedding ChildSumTreeLSTM NaryTreeLSTM NaryTreeGRU]
-: the model comes first: vpps.nn.{owner}(model, ...)
device: {elsewhere}
dtype: all weights are float32; {rounds}
[Linear]
in_features out_features units: Linear(model, input_size, output_size)
[Embedding]
num_embeddings embedding_dim input_dim output_dim: Embedding(model, rows, size)
padding_idx mask_zero: graphs need no padding; the recipe "Freezing" freezes rows of a table
_weight weights: init=array gives the vectors
freeze: trainable=False freezes the vectors
sparse: updates are always sparse
max_norm scale_grad_by_freq: vectors are not rescaled; x / vpps.norm(x) has length 1
[MLP]
hidden_sizes hidden_dims hidden layers: hidden_size takes several, too: MLP(model, 4, (128, 64), 2)
activation: hidden layers are tanh; vpps.relu(linear(x)) calls a vpps.nn.Linear
[forward gradients]
training: it is called train
[forward]
-: the graph comes first: handle.forward(graph, [x])
[fb gradients]
-: the graph comes first: handle.{owner}(graph, loss)
"""

# An option heads each section. Each line lists words from the user's value, then their hint.
OPTIONS = """
[precision]
bfloat16 mixed amp auto: 'bf16' rounds the factors of products, and all else is float32
float16 fp16 half: use 'bf16', which has the range of float32 and needs no loss scaling
fp32 single full: it is called 'float32'
tensorfloat32 high medium: it is called 'tf32'; '3xtf32' is about as exact as float32
float64 fp64 double: the widest precision is 'float32'
[policy]
fsm: learn it first: policy=vpps.learn_policy(graph)
auto: removed, as 'sinks-last', the default, was as fast; leave policy out
"""
