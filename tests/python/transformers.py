"""Transformers as exporters spell them: small, with seeded weights of which a few channels stand out as in trained ones."""

import itertools

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN, HEADS, LAYERS, VOCABULARY, LENGTH = 64, 4, 2, 200, 12
HEAD = HIDDEN // HEADS
MICROSOFT = "com.microsoft"
F = np.float32


class Graph:
    """Nodes in order; an array among a node's inputs becomes an initializer."""

    def __init__(self, opset, seed):
        self.opset, self.rng = opset, np.random.default_rng(seed)
        self.nodes, self.initializers, self.scope, self.domains = [], [], "", set()

    def draw(self, *shape, gain=1.0):
        """A weight of inputs by outputs."""
        return (self.rng.standard_normal(shape) * gain / np.sqrt(shape[0])).astype(F)

    def constant(self, value, name=None):
        name = name or f"{self.scope}constant_{len(self.nodes)}_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind, *inputs, n=1, name=None, domain="", **attributes):
        """Name of the output; a list of `n` of them where there are more."""
        inputs = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        name = name or f"{self.scope}{kind}_{len(self.nodes)}"
        outputs = [name + "_output"] if n == 1 else [f"{name}_output_{k}" for k in range(n)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes))
        self.domains.add(domain)
        return outputs[0] if n == 1 else outputs

    def with_axes(self, kind, x, axes, **attributes):
        """Axes are an attribute before opset 13, for ReduceMean before 18."""
        if self.opset < (18 if kind.startswith("Reduce") and kind != "ReduceSum" else 13):
            return self.op(kind, x, axes=axes, **attributes)
        return self.op(kind, x, np.array(axes, np.int64), **attributes)

    def save(self, path, inputs, outputs):
        """Inputs and outputs are dictionaries of a type and dimensions; tensors of outputs get these names."""
        for name, (tensor, *_) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [tensor], [name], f"{name}_identity"))
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, "transformer", [value(name, kind, dims) for name, (kind, dims) in inputs.items()],
            [value(name, TensorProto.FLOAT, dims) for name, (_, dims) in outputs.items()], self.initializers)
        opsets = [helper.make_opsetid("", self.opset)] + [helper.make_opsetid(MICROSOFT, 1)] * (MICROSOFT in self.domains)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if self.opset < 20 else 10 if self.opset < 23 else 11)
        onnx.checker.check_model(model, full_check=MICROSOFT not in self.domains)
        onnx.save(model, path)

    # Layers.

    def linear(self, x, n_in, n_out, name, bias=True):
        """nn.Linear on more than two dimensions: MatMul, Add."""
        y = self.op("MatMul", x, self.draw(n_in, n_out), name=name)
        return self.op("Add", self.bias(n_out), y) if bias else y

    def bias(self, n):
        return self.rng.normal(0, 0.1, n).astype(F)

    def gain(self, n=HIDDEN):
        """Of a norm: three channels stand out."""
        gain = self.rng.normal(1, 0.1, n).astype(F)
        gain[self.rng.choice(n, 3, replace=False)] *= 4
        return gain

    def layer_norm(self, x, n=HIDDEN):
        return self.op("LayerNormalization", x, self.gain(n), self.bias(n), axis=-1, epsilon=1e-5)

    def layer_norm_spelled(self, x, n=HIDDEN):
        centred = self.op("Sub", x, self.with_axes("ReduceMean", x, [-1]))
        variance = self.with_axes("ReduceMean", self.op("Pow", centred, F(2)), [-1])
        normal = self.op("Div", centred, self.op("Sqrt", self.op("Add", variance, F(1e-5))))
        return self.op("Add", self.op("Mul", normal, self.gain(n)), self.bias(n))

    def rms_norm_spelled(self, x):
        variance = self.with_axes("ReduceMean", self.op("Pow", x, F(2)), [-1])
        by = self.op("Reciprocal", self.op("Sqrt", self.op("Add", variance, F(1e-5))))
        return self.op("Mul", self.gain(), self.op("Mul", x, by))

    def gelu(self, x, spelling):
        half = lambda x, y: self.op("Mul", self.op("Mul", x, y), F(0.5))
        one = lambda y: self.op("Add", y, F(1))
        if spelling == "operator":
            return self.op("Gelu", x)
        if spelling == "erf, divided":
            return half(x, one(self.op("Erf", self.op("Div", x, F(np.sqrt(2))))))
        if spelling == "erf, multiplied":
            return self.op("Mul", self.op("Mul", x, F(0.5)), one(self.op("Erf", self.op("Mul", x, F(np.sqrt(0.5))))))
        if spelling == "tanh":
            inner = self.op("Add", x, self.op("Mul", self.op("Pow", x, F(3)), F(0.044715)))
            return half(x, one(self.op("Tanh", self.op("Mul", inner, F(np.sqrt(2 / np.pi))))))
        if spelling == "sigmoid":
            return self.op("Mul", x, self.op("Sigmoid", self.op("Mul", x, F(1.702))))
        if spelling == "BiasGelu":
            return self.op(spelling, x, self.bias(4 * HIDDEN), domain=MICROSOFT)
        return self.op(spelling, x, domain=MICROSOFT)

    def dimension(self, x, axis):
        return self.op("Gather", self.op("Shape", x), np.int64(axis), axis=0)

    def reshaped(self, x, *dims):
        """Reshape with dimensions that are tensors or numbers, as tracing in PyTorch writes it."""
        one = lambda d: self.with_axes("Unsqueeze", d, [0]) if isinstance(d, str) else np.array([d], np.int64)
        return self.op("Reshape", x, self.op("Concat", *map(one, dims), axis=0))

    def heads(self, x, source, last=False, n=HEADS):
        """[batch, length, hidden] to [batch, heads, length, head], or its transpose at the `last` two axes."""
        split = self.reshaped(x, self.dimension(source, 0), self.dimension(source, 1), n, HEAD)
        return self.op("Transpose", split, perm=[0, 2, 3, 1] if last else [0, 2, 1, 3])

    def attended(self, q, kt, v, mask=None, scaled=True):
        """[batch, heads, length, head]."""
        scores = self.op("MatMul", q, kt, name=f"{self.scope}scores")
        if scaled:
            scores = self.op("Div", scores, F(np.sqrt(HEAD)))
        if mask:
            scores = self.op("Add", scores, mask)
        weights = self.op("Softmax", scores, axis=-1 if self.opset >= 13 else 3)
        return self.op("MatMul", weights, v, name=f"{self.scope}mixed")

    def joined(self, mixed):
        moved = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.reshaped(moved, self.dimension(moved, 0), self.dimension(moved, 1), HIDDEN)

    def attention(self, x, mask=None):
        """Three layers; the shapes of what they make and of `x` are asked for."""
        q, k, v = (self.linear(x, HIDDEN, HIDDEN, f"{self.scope}{name}") for name in ("query", "key", "value"))
        q, kt, v = self.heads(q, q), self.heads(k, k, last=True), self.heads(v, x)
        return self.linear(self.joined(self.attended(q, kt, v, mask)), HIDDEN, HIDDEN, f"{self.scope}output")

    def feed_forward(self, x, spelling):
        up = self.linear(x, HIDDEN, 4 * HIDDEN, f"{self.scope}up")
        return self.linear(self.gelu(up, spelling), 4 * HIDDEN, HIDDEN, f"{self.scope}down")


OF_BERT = {"input_ids": (TensorProto.INT64, ["batch", "sequence"]),
           "attention_mask": (TensorProto.INT64, ["batch", "sequence"])}


def embedded(g, norm):
    table = np.random.default_rng(8).normal(0, 1, (VOCABULARY, HIDDEN)).astype(F)
    length = g.with_axes("Unsqueeze", g.dimension("input_ids", 1), [0])
    position_ids = g.op("Slice", np.arange(64)[None], np.array([0]), length, np.array([1]))
    x = g.op("Add", g.op("Gather", table, "input_ids"), g.draw(1, HIDDEN, gain=0.1))
    return norm(g.op("Add", x, g.op("Gather", g.draw(64, HIDDEN), position_ids)))


def pooled(g, x, linear):
    """Of the first token, as BERT's pooler does it."""
    return g.op("Tanh", linear(g.op("Gather", x, np.int64(0), axis=1)))


def gemm(g, x, n_in, n_out, name):
    """nn.Linear on two dimensions."""
    return g.op("Gemm", x, np.ascontiguousarray(g.draw(n_in, n_out).T), g.bias(n_out), name=name, transB=1)


def bert(path, opset, norm, gelu, mask):
    """Residual Add, then a norm."""
    g = Graph(opset, seed=1)
    norm = {"operator": g.layer_norm, "spelled": g.layer_norm_spelled}[norm]
    x = embedded(g, norm)
    wide = g.with_axes("Unsqueeze", "attention_mask", [1, 2])
    if mask == "additive":
        mask = g.op("Mul", g.op("Sub", F(1), g.op("Cast", wide, to=TensorProto.FLOAT)), F(-10000))
    else:
        mask = g.op("Where", g.op("Cast", wide, to=TensorProto.BOOL), F(0), F(-np.inf))
    for layer in range(LAYERS):
        g.scope = f"layer.{layer}/"
        x = norm(g.op("Add", g.attention(x, mask), x))
        x = norm(g.op("Add", g.feed_forward(x, gelu), x))
    g.scope = ""
    y = pooled(g, x, lambda first: gemm(g, first, HIDDEN, HIDDEN, "pooler"))
    g.save(path, OF_BERT, {"last_hidden_state": (x, ["batch", "sequence", HIDDEN]), "pooled": (y, ["batch", HIDDEN])})


def patches(g):
    """Of [batch, 3, 16, 16]: a Conv, a class token that is expanded to the batch, positions."""
    x = g.op("Conv", "pixels", g.draw(HIDDEN, 3, 4, 4, gain=2), g.bias(HIDDEN), name="patches", strides=[4, 4],
             kernel_shape=[4, 4])
    x = g.op("Transpose", g.op("Reshape", x, np.array([0, HIDDEN, -1])), perm=[0, 2, 1])
    shape = g.op("Concat", g.with_axes("Unsqueeze", g.dimension("pixels", 0), [0]), np.array([-1, -1]), axis=0)
    # ConstantOfShape, Mul, Equal, Where: what tracing makes of `expand(batch, -1, -1)`.
    ones = g.op("ConstantOfShape", np.array([3]), value=numpy_helper.from_array(np.array([1])))
    shape = g.op("Where", g.op("Equal", shape, g.op("Mul", ones, np.int64(-1))), ones, shape)
    x = g.op("Concat", g.op("Expand", g.draw(1, 1, HIDDEN), shape), x, axis=1)
    return g.op("Add", x, g.draw(1, 17, HIDDEN, gain=0.3))


def vit(path, opset, norm, gelu, fused):
    """A norm in front of attention and one in front of the feed-forward layers; `fused`: one layer for q, k and v."""
    g = Graph(opset, seed=2)
    norm = {"operator": g.layer_norm, "spelled": g.layer_norm_spelled}[norm]
    x = patches(g)
    for layer in range(LAYERS):
        g.scope = f"blocks.{layer}/"
        n = norm(x)
        if fused:
            qkv = g.linear(n, HIDDEN, 3 * HIDDEN, f"{g.scope}qkv")
            qkv = g.reshaped(qkv, g.dimension(n, 0), g.dimension(n, 1), 3, HEADS, HEAD)
            parts = g.op("Split", g.op("Transpose", qkv, perm=[2, 0, 3, 1, 4]), n=3, axis=0, num_outputs=3)
            q, k, v = (g.with_axes("Squeeze", part, [0]) for part in parts)
            q, kt = g.op("Mul", q, F(HEAD ** -0.5)), g.op("Transpose", k, perm=[0, 1, 3, 2])
            a = g.linear(g.joined(g.attended(q, kt, v, scaled=False)), HIDDEN, HIDDEN, f"{g.scope}output")
        else:
            a = g.attention(n)
        x = g.op("Add", x, a)
        x = g.op("Add", x, g.feed_forward(norm(x), gelu))
    g.scope = ""
    first = g.op("Gather", norm(x), np.int64(0), axis=1)
    y = gemm(g, first, HIDDEN, 10, "head")
    g.save(path, {"pixels": (TensorProto.FLOAT, ["batch", 3, 16, 16])}, {"logits": (y, ["batch", 10])})


def microsoft(path, whole):
    """What ONNX Runtime's optimizer for transformers makes of BERT, with another GELU in each block; `whole`: embedding and
    attention are one operator each."""
    g = Graph(17, seed=3)
    table, norm = g.rng.normal(0, 1, (VOCABULARY, HIDDEN)).astype(F), lambda: (g.gain(), g.bias(HIDDEN))
    skip = lambda y, x: g.op("SkipLayerNormalization", y, x, *norm(), g.bias(HIDDEN), domain=MICROSOFT)
    matrix = lambda x, n_in, n_out, name: g.op("MatMul", x, g.draw(n_in, n_out), name=f"{g.scope}{name}")
    wide = lambda name: g.op("Cast", name, to=TensorProto.INT32)
    if whole:
        x, seen = g.op("EmbedLayerNormalization", wide("input_ids"), "", table, g.draw(64, HIDDEN), "", *norm(),
                       wide("attention_mask"), n=2, domain=MICROSOFT)
    else:
        x = g.op("Gather", table, "input_ids")
        seen = g.op("Where", g.op("Cast", g.with_axes("Unsqueeze", "attention_mask", [1, 2]), to=TensorProto.BOOL),
                    F(0), F(np.finfo(F).min))
    for layer, gelu in enumerate(("BiasGelu", "FastGelu", "QuickGelu")):
        g.scope = f"layer.{layer}/"
        if whole:
            a = g.op("Attention", x, g.draw(HIDDEN, 3 * HIDDEN), g.bias(3 * HIDDEN), seen, num_heads=HEADS,
                     domain=MICROSOFT)
        else:
            q, k, v = (g.linear(x, HIDDEN, HIDDEN, g.scope + name) for name in ("query", "key", "value"))
            a = g.joined(g.attended(g.heads(q, x), g.heads(k, x, last=True), g.heads(v, x), seen))
        x = skip(matrix(a, HIDDEN, HIDDEN, "output"), x)
        up = matrix(x, HIDDEN, 4 * HIDDEN, "up")
        up = up if gelu == "BiasGelu" else g.op("Add", up, g.bias(4 * HIDDEN))
        x = skip(matrix(g.gelu(up, gelu), 4 * HIDDEN, HIDDEN, "down"), x)
    g.scope = ""
    y = pooled(g, x, lambda first: gemm(g, first, HIDDEN, HIDDEN, "pooler"))
    g.save(path, OF_BERT, {"last_hidden_state": (x, ["batch", "sequence", HIDDEN]), "pooled": (y, ["batch", HIDDEN])})


def llama(path, operators):
    """Norms by the root mean square, rotary embedding, keys and values of two heads for four, a gate of SiLU,
    and the transposed table of embeddings as the last layer. `operators`: norms, rotary embedding and attention are one
    operator each, of opset 23."""
    g, groups = Graph(23 if operators else 17, seed=4), 2
    table = g.constant(g.rng.normal(0, 1, (VOCABULARY, HIDDEN)).astype(F), "embed_tokens.weight")
    x = g.op("Gather", table, "input_ids")
    angles = np.arange(64)[:, None] / 10000 ** (np.arange(0, HEAD, 2) / HEAD)
    length = g.with_axes("Unsqueeze", g.dimension("input_ids", 1), [0])
    if operators:
        cos, sin = np.cos(angles).astype(F), np.sin(angles).astype(F)
        positions = g.op("Slice", np.arange(64)[None], np.array([0]), length, np.array([1]))
        positions = g.op("Add", positions, g.op("Mul", "input_ids", np.int64(0)))
    else:
        angles = np.concatenate([angles, angles], 1)[None, None]
        cos, sin = (g.op("Slice", f(angles).astype(F), np.array([0]), length, np.array([2])) for f in (np.cos, np.sin))
        causal = np.where(np.tri(64, dtype=bool), F(0), np.finfo(F).min)[None, None]
        mask = g.op("Slice", causal, np.array([0, 0]), g.op("Concat", length, length, axis=0), np.array([2, 3]))

    def norm(x):
        return g.op("RMSNormalization", x, g.gain(), axis=-1, epsilon=1e-5) if operators else g.rms_norm_spelled(x)

    def rotated(x):
        if operators:
            return g.op("RotaryEmbedding", x, cos, sin, positions)
        half = lambda a, b: g.op("Slice", x, np.array([a]), np.array([b]), np.array([3]))
        turned = g.op("Concat", g.op("Neg", half(HEAD // 2, 2**62)), half(0, HEAD // 2), axis=-1)
        return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))

    def repeated(x):
        """[batch, 2, length, head] to [batch, 4, length, head]."""
        batch, n = g.dimension(x, 0), g.dimension(x, 2)
        parts = [g.with_axes("Unsqueeze", d, [0]) if isinstance(d, str) else np.array([d])
                 for d in (batch, groups, HEADS // groups, n, HEAD)]
        wide = g.op("Expand", g.with_axes("Unsqueeze", x, [2]), g.op("Concat", *parts, axis=0))
        return g.reshaped(wide, batch, HEADS, n, HEAD)

    def mixed(q, k, v):
        if operators:
            return g.op("Attention", q, k, v, is_causal=1, name=f"{g.scope}attention")
        return g.attended(q, g.op("Transpose", repeated(k), perm=[0, 1, 3, 2]), repeated(v), mask)

    def layer(x, n_out, name):
        return g.linear(x, HIDDEN, n_out, f"{g.scope}{name}", bias=False)

    for block in range(LAYERS):
        g.scope = f"layers.{block}/"
        n = norm(x)
        q, k, v = (g.heads(layer(n, heads * HEAD, f"{name}_proj"), n, n=heads)
                   for name, heads in (("q", HEADS), ("k", groups), ("v", groups)))
        x = g.op("Add", x, layer(g.joined(mixed(rotated(q), rotated(k), v)), HIDDEN, "o_proj"))
        n = norm(x)
        gate, up = layer(n, 2 * HIDDEN, "gate_proj"), layer(n, 2 * HIDDEN, "up_proj")
        gated = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
        x = g.op("Add", x, g.linear(gated, 2 * HIDDEN, HIDDEN, f"{g.scope}down_proj", bias=False))
    g.scope = ""
    n = norm(x)
    y = g.op("MatMul", n, g.op("Transpose", table, perm=[1, 0]), name="lm_head")
    g.save(path, {"input_ids": OF_BERT["input_ids"]}, {"logits": (y, ["batch", "sequence", VOCABULARY])})


def swin(path):
    """Attention in windows of 4 by 4 of 8 by 8 tokens, in every second block of a rolled image, with a bias by position."""
    g, side, window = Graph(17, seed=5), 8, 4
    norm = g.layer_norm
    x = g.op("Conv", "pixels", g.draw(HIDDEN, 3, 2, 2, gain=2), g.bias(HIDDEN), name="patches", strides=[2, 2],
             kernel_shape=[2, 2])
    x = norm(g.op("Transpose", g.op("Reshape", x, np.array([0, HIDDEN, -1])), perm=[0, 2, 1]))

    def rolled(x, by):
        """torch.roll along both axes of the image: two Slices and a Concat each."""
        for axis in (1, 2):
            part = lambda a, b: g.op("Slice", x, np.array([a]), np.array([b]), np.array([axis]))
            x = g.op("Concat", part(by, 2**62), part(0, by), axis=axis)
        return x

    n_windows, n_tokens = (side // window) ** 2, window ** 2
    regions = np.zeros((side, side), int)
    for k, (a, b) in enumerate([(0, 4), (4, 6), (6, 8)]):
        for m, (c, d) in enumerate([(0, 4), (4, 6), (6, 8)]):
            regions[a:b, c:d] = 3 * k + m
    regions = regions.reshape(2, 4, 2, 4).transpose(0, 2, 1, 3).reshape(n_windows, n_tokens)
    apart = np.where(regions[:, None] == regions[:, :, None], F(0), F(-100))[None, :, None]
    for block in range(LAYERS):
        g.scope = f"blocks.{block}/"
        n = g.op("Reshape", norm(x), np.array([-1, side, side, HIDDEN]))
        n = rolled(n, 2) if block % 2 else n
        n = g.op("Reshape", n, np.array([-1, 2, window, 2, window, HIDDEN]))
        n = g.op("Reshape", g.op("Transpose", n, perm=[0, 1, 3, 2, 4, 5]), np.array([-1, n_tokens, HIDDEN]))
        qkv = g.linear(n, HIDDEN, 3 * HIDDEN, f"{g.scope}qkv")
        qkv = g.op("Transpose", g.op("Reshape", qkv, np.array([-1, n_tokens, 3, HEADS, HEAD])), perm=[2, 0, 3, 1, 4])
        q, k, v = (g.op("Gather", qkv, np.int64(part), axis=0) for part in range(3))
        q, kt = g.op("Mul", q, F(HEAD ** -0.5)), g.op("Transpose", k, perm=[0, 1, 3, 2])
        scores = g.op("MatMul", q, kt, name=f"{g.scope}scores")
        scores = g.op("Add", scores, g.rng.normal(0, 1, (1, HEADS, n_tokens, n_tokens)).astype(F))
        if block % 2:
            scores = g.op("Reshape", scores, np.array([-1, n_windows, HEADS, n_tokens, n_tokens]))
            scores = g.op("Reshape", g.op("Add", scores, apart), np.array([-1, HEADS, n_tokens, n_tokens]))
        mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), v, name=f"{g.scope}mixed")
        a = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), np.array([-1, n_tokens, HIDDEN]))
        a = g.linear(a, HIDDEN, HIDDEN, f"{g.scope}output")
        a = g.op("Reshape", a, np.array([-1, 2, 2, window, window, HIDDEN]))
        a = g.op("Reshape", g.op("Transpose", a, perm=[0, 1, 3, 2, 4, 5]), np.array([-1, side, side, HIDDEN]))
        a = rolled(a, side - 2) if block % 2 else a
        x = g.op("Add", x, g.op("Reshape", a, np.array([-1, side * side, HIDDEN])))
        x = g.op("Add", x, g.feed_forward(norm(x), "erf, divided"))
    g.scope = ""
    mean = g.op("Flatten", g.op("GlobalAveragePool", g.op("Transpose", norm(x), perm=[0, 2, 1])))
    y = gemm(g, mean, HIDDEN, 10, "head")
    g.save(path, {"pixels": (TensorProto.FLOAT, ["batch", 3, 16, 16])}, {"logits": (y, ["batch", 10])})


def flattened(path):
    """Gemms on [batch * length, hidden] with a Reshape on either side."""
    g = Graph(11, seed=6)
    norm = g.layer_norm_spelled
    g.linear = lambda x, n_in, n_out, name: (
        g.op("Reshape", gemm(g, g.op("Reshape", x, np.array([-1, n_in])), n_in, n_out, name),
             np.array([-1, LENGTH, n_out])))
    x = g.linear("x", HIDDEN, HIDDEN, "embed")
    for layer in range(LAYERS):
        g.scope = f"layer.{layer}/"
        x = g.op("Add", x, g.attention(norm(x)))
        x = g.op("Add", x, g.feed_forward(norm(x), "erf, multiplied"))
    g.scope = ""
    x = norm(x)
    g.save(path, {"x": (TensorProto.FLOAT, ["batch", LENGTH, HIDDEN])}, {"y": (x, ["batch", LENGTH, HIDDEN])})


def indirect(path):
    """Weights that come through a Transpose or an Identity, and from Constant nodes."""
    g = Graph(14, seed=7)
    ways = itertools.cycle([
        lambda weight: g.op("Transpose", np.ascontiguousarray(weight.T), perm=[1, 0]),
        lambda weight: g.op("Identity", weight),
        lambda weight: g.op("Constant", value=numpy_helper.from_array(weight)),
        lambda weight: g.op("Identity", g.op("Constant", value=numpy_helper.from_array(weight))),
    ])
    g.linear = lambda x, n_in, n_out, name: (
        g.op("Add", g.op("MatMul", x, next(ways)(g.draw(n_in, n_out)), name=name), g.bias(n_out)))
    x = "x"
    for layer in range(LAYERS):
        g.scope = f"layer.{layer}/"
        x = g.op("Add", x, g.attention(g.layer_norm_spelled(x)))
        x = g.op("Add", x, g.feed_forward(g.layer_norm_spelled(x), "erf, divided"))
    g.scope = ""
    x = g.layer_norm_spelled(x)
    g.save(path, {"x": (TensorProto.FLOAT, ["batch", "sequence", HIDDEN])}, {"y": (x, ["batch", "sequence", HIDDEN])})


def tokens(n, mask=True):
    """Ids of `n` samples, the last ones of some left out."""
    rng = np.random.default_rng(9)
    kept = np.arange(LENGTH) < rng.integers(LENGTH // 2, LENGTH + 1, (n, 1))
    ids = rng.integers(1, VOCABULARY, (n, LENGTH))
    return {"input_ids": ids * kept, "attention_mask": kept.astype(np.int64)} if mask else {"input_ids": ids}


def images(n):
    rng = np.random.default_rng(10)
    coarse = rng.standard_normal((n, 3, 4, 4)).repeat(4, 2).repeat(4, 3)
    return {"pixels": (coarse + 0.5 * rng.standard_normal((n, 3, 16, 16))).astype(F)}


def vectors(n):
    rng = np.random.default_rng(11)
    return {"x": rng.standard_normal((n, LENGTH, HIDDEN)).astype(F)}
