"""Every memory against its papers' equations, position by position in numpy, and its number of parameters."""

import math

import numpy as np
import pytest
import torch

from dqn_memory.blocks import MEMORY, build, names

WIDTH, BATCH, BEFORE, TIME = 8, 3, 5, 40
OPTIONS = {  # none of them a default
    "frame_stack": {"frames": 3},
    "clock": {"waves": 3},
    "attention": {"heads": 2, "context": 7},
    "linear_attention": {"heads": 2},
    "slstm": {"heads": 2},
    "mlstm": {"heads": 2},
    "deltanet": {"heads": 2},
    "gated_deltanet": {"heads": 2},
    "deltaproduct": {"heads": 4, "steps": 3},
    "rwkv7": {"heads": 4, "rank": 3},
    "mamba2": {"heads": 2, "states": 3, "taps": 3, "expand": 3},
    "ttt_linear": {"heads": 4},
    "lru": {"states": 5},
    "s5": {"states": 6},
    "ffm": {"memory": 3, "context": 2},
    "shm": {"size": 4, "rows": 6},
    "mamba": {"states": 3, "taps": 3, "expand": 3, "rank": 2},
}


# ---- the equations: from parameters by name and the inputs (T, D) of one episode, its outputs (D,) one after the other


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def affine(w, name, x):
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0.0)


def linear(w, x):
    for x_t in x:
        yield affine(w, "layers.0", x_t)


def feed_forward(w, x, **_):
    for x_t in x:
        yield affine(w, "layers.2", np.maximum(affine(w, "layers.0", x_t), 0))


def frame_stack(w, x, frames):
    x = np.concatenate((np.zeros((frames - 1, x.shape[1])), x))
    for t in range(frames, len(x) + 1):
        yield affine(w, "linear", x[t - frames : t].ravel())


def clock(w, x, waves):
    for t, x_t in enumerate(x):
        angles = [t / 10_000 ** (j / waves) for j in range(waves)]
        seen = np.concatenate((x_t, np.sin(angles), np.cos(angles)))
        yield affine(w, "layers.2", np.maximum(affine(w, "layers.0", seen), 0))


def drives(w, x_t, h):
    """Compute the parts of the gates of torch's cells from the input and from the hidden state."""
    return [w[f"cell.weight_{kind}_l0"] @ value + w[f"cell.bias_{kind}_l0"] for kind, value in (("ih", x_t), ("hh", h))]


def rnn(w, x):
    h = np.zeros(x.shape[1])
    for x_t in x:
        h = np.tanh(sum(drives(w, x_t, h)))
        yield h


def lstm(w, x):
    h = c = np.zeros(x.shape[1])
    for x_t in x:
        i, f, g, o = np.split(sum(drives(w, x_t, h)), 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        yield h


def gru(w, x):
    h = np.zeros(x.shape[1])
    for x_t in x:
        (r, z, n), (hidden_r, hidden_z, hidden_n) = (np.split(drive, 3) for drive in drives(w, x_t, h))
        z = sigmoid(z + hidden_z)
        h = (1 - z) * np.tanh(n + sigmoid(r + hidden_r) * hidden_n) + z * h
        yield h


def mingru(w, x):
    h = 0.0
    for x_t in x:
        z, candidate = np.split(affine(w, "linear", x_t), 2)
        h = (1 - sigmoid(z)) * h + sigmoid(z) * candidate
        yield h


def minlstm(w, x):
    h = 0.0
    for x_t in x:
        f, i, candidate = np.split(affine(w, "linear", x_t), 3)
        f, i = sigmoid(f), sigmoid(i)
        h = f / (f + i) * h + i / (f + i) * candidate
        yield h


def state_space(w, x, a, scale, times):
    into, out = w["enter"][::2] + 1j * w["enter"][1::2], w["leave"][:, ::2] - 1j * w["leave"][:, 1::2]  # B, C
    h = 0.0
    for x_t in x:
        h = a * h + scale * (into @ x_t)
        yield times * (out @ h).real + w["skip"] * x_t


def lru(w, x, states):
    return state_space(w, x, np.exp(-np.exp(w["nu"]) + 1j * np.exp(w["theta"])), np.exp(w["gamma"]), 1)


def s5(w, x, states):
    continuous = -np.exp(w["decay"]) + 1j * w["frequency"]
    a = np.exp(continuous * np.exp(w["step_size"]))
    return state_space(w, x, a, (a - 1) / continuous, 2)


def ffm(w, x, memory, context):
    gamma = np.exp(-np.exp(w["alpha"])[:, None] + 1j * w["omega"])  # (m, c)
    s = 0.0
    for x_t in x:
        value, gate = np.split(affine(w, "enter", x_t), 2)
        s = gamma * s + (value * sigmoid(gate))[:, None]
        z = affine(w, "leave", np.stack((s.real, s.imag), -1).ravel())
        gate, own = np.split(affine(w, "beside", x_t), 2)
        yield (z - z.mean()) / np.sqrt(z.var() + 1e-5) * sigmoid(gate) + own * (1 - sigmoid(gate))


def shm(w, x, size, rows):
    matrix = 0.0
    for row, x_t in zip(w["order"], x, strict=False):
        q, k, v, calibration, eta = np.split(affine(w, "into", x_t), [size, 2 * size, 3 * size, 4 * size])
        matrix = matrix * (1 + np.tanh(np.outer(w["theta.weight"][row], calibration))) + sigmoid(eta) * np.outer(v, k)
        yield affine(w, "out", matrix @ q)


def slstm(w, x, heads):
    """Equations 8-14 as they stand, without the stabiliser; `weight` (H, d, 4 d): a head's four matrices in a row."""
    d = x.shape[1] // heads
    h = c = n = np.zeros((heads, d))
    for x_t in x:
        inside = (w["weight_in"] @ x_t + w["bias"]).reshape(4, heads, d)
        z, i, f, o = inside + np.einsum("hk,hkgd->ghd", h, w["weight"].reshape(heads, d, 4, d))
        c = sigmoid(f) * c + np.exp(i) * np.tanh(z)
        n = sigmoid(f) * n + np.exp(i)
        h = sigmoid(o) * c / n
        yield h.ravel()


def mlstm(w, x, heads):
    """Equations 19-27 as they stand, without the stabiliser."""
    width = x.shape[1]
    d = width // heads
    c, n = np.zeros((heads, d, d)), np.zeros((heads, d))
    for x_t in x:
        maps = w["project_in.weight"] @ x_t + w["bias"]
        q, k, v, o = maps[: 4 * width].reshape(4, heads, d)
        i, f = maps[4 * width :].reshape(2, heads, 1)
        k = k / np.sqrt(d)
        c = sigmoid(f)[..., None] * c + np.exp(i)[..., None] * v[:, :, None] * k[:, None]
        n = sigmoid(f) * n + np.exp(i) * k
        read = [c[h] @ q[h] / max(abs(n[h] @ q[h]), 1) for h in range(heads)]
        yield (sigmoid(o) * read).ravel()


def attention(w, x, heads, context):
    """Encode the window of the last K inputs at each position, its first one at position 0."""
    half = x.shape[1] // heads // 2
    for t in range(1, len(x) + 1):
        window = [affine(w, "attention.project_in", x_s).reshape(3, heads, -1) for x_s in x[max(0, t - context) : t]]
        mixed = []
        for head in range(heads):
            q, k, v = np.stack(window)[:, :, head].swapaxes(0, 1)  # (n, d)
            turn = np.exp(1j * np.outer(np.arange(len(q)), 10_000.0 ** (-np.arange(half) / half)))
            q, k = (turn * (part[:, :half] + 1j * part[:, half:]) for part in (q, k))
            weights = np.exp((k @ q[-1].conj()).real / np.sqrt(2 * half))
            mixed.append(weights @ v / weights.sum())
        yield affine(w, "attention.project_out", np.concatenate(mixed))


def linear_attention(w, x, heads):
    s, z = [0.0] * heads, [0.0] * heads
    for x_t in x:
        q, k, v = affine(w, "project_in", x_t).reshape(3, heads, -1)
        q, k = (np.where(part > 0, part + 1, np.exp(part)) for part in (q, k))
        s = [s[h] + np.outer(k[h], v[h]) for h in range(heads)]
        z = [z[h] + k[h] for h in range(heads)]
        y = [s[h].T @ q[h] / (z[h] @ q[h] + 1e-6) for h in range(heads)]
        yield affine(w, "project_out", np.concatenate(y))


def deltanet(w, x, heads):
    """Gated or not."""
    width, gated = x.shape[1], "A_log" in w
    s = [np.zeros((width // heads, width // heads))] * heads
    for x_t in x:
        maps = affine(w, "project_in", x_t)
        q, k, v = silu(maps[: 3 * width]).reshape(3, heads, -1)
        q, k = (part / np.sqrt((part * part).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
        b, a = sigmoid(maps[3 * width : 3 * width + heads]), np.ones(heads)
        if gated:
            a = np.exp(-np.exp(w["A_log"]) * np.log1p(np.exp(maps[3 * width + heads :] + w["decay_bias"])))
        y = []
        for h in range(heads):
            keep = np.eye(width // heads) - b[h] * np.outer(k[h], k[h])
            s[h] = a[h] * s[h] @ keep + b[h] * np.outer(v[h], k[h])
            read = s[h] @ q[h]
            y.append(read / np.sqrt((read * read).mean() + 1e-5) * w["scale"])
        yield affine(w, "project_out", np.concatenate(y) * (silu(affine(w, "project_gate", x_t)) if gated else 1))


def deltaproduct(w, x, heads, steps):
    width = x.shape[1]
    d = width // heads
    s = np.zeros((heads, d, d))
    for x_t in x:
        vectors, numbers = np.split(affine(w, "project_in", x_t), [(2 * steps + 1) * width])
        vectors = silu(vectors).reshape(-1, heads, d)
        q, *keys = vectors[: steps + 1] / np.sqrt((vectors[: steps + 1] ** 2).sum(-1, keepdims=True) + 1e-6)
        values = vectors[steps + 1 :]
        b, decay = 2 * sigmoid(numbers[: steps * heads]).reshape(steps, heads), numbers[steps * heads :]
        a = np.exp(-np.exp(w["A_log"]) * np.log1p(np.exp(decay + w["decay_bias"])))
        y = []
        for h in range(heads):
            product, written = np.eye(d), np.zeros((d, d))  # A and B of the paper: S_t = a S A + B
            for j in range(steps):
                step = np.eye(d) - b[j, h] * np.outer(keys[j][h], keys[j][h])
                product, written = product @ step, written @ step + b[j, h] * np.outer(values[j][h], keys[j][h])
            s[h] = a[h] * s[h] @ product + written
            read = s[h] @ q[h]
            y.append(read / np.sqrt((read * read).mean() + 1e-5) * w["scale"])
        yield affine(w, "project_out", np.concatenate(y) * silu(affine(w, "project_gate", x_t)))


def rwkv7(w, x, heads, rank):
    width = x.shape[1]
    d = width // heads
    before, s = np.zeros(width), np.zeros((heads, d, d))
    for x_t in x:
        r, k, v, z, a, g = ((1 - mu) * x_t + mu * before for mu in w["shift"])
        before = x_t
        r, k, v = (affine(w, f"maps.{i}", part) for i, part in enumerate((r, k, v)))
        z = affine(w, "broad.0", np.tanh(affine(w, "narrow.0", z))) + w["decay_bias"]
        decay = np.exp(-np.exp(-0.5) * sigmoid(z))
        a = sigmoid(affine(w, "broad.1", affine(w, "narrow.1", a)) + w["rate_bias"])
        g = affine(w, "broad.2", sigmoid(affine(w, "narrow.2", g)))
        c = (k * w["removal"]).reshape(heads, d)
        c = c / np.sqrt((c * c).sum(-1, keepdims=True) + 1e-6)
        k = k * (1 + w["replacement"] * (a - 1))
        r, k, v, a, decay, rho = (part.reshape(heads, d) for part in (r, k, v, a, decay, w["bonus"]))
        y, bonus = [], []
        for h in range(heads):
            s[h] = s[h] @ (np.diag(decay[h]) - np.outer(c[h], a[h] * c[h])) + np.outer(v[h], k[h])
            read = s[h] @ r[h]
            y.append((read - read.mean()) / np.sqrt(read.var() + 1e-5 * d))
            bonus.append((r[h] @ (rho[h] * k[h])) * v[h])
        y = np.concatenate(y) * w["scale"] + w["bias"] + np.concatenate(bonus)
        yield affine(w, "project_out", g * y)


def mamba2(w, x, heads, states, taps, expand):
    inner = expand * x.shape[1]
    recent, s = [np.zeros(inner + 2 * states)] * taps, np.zeros((heads, states, inner // heads))
    for x_t in x:
        z, packed, step = np.split(affine(w, "in_proj", x_t), [inner, 2 * inner + 2 * states])
        recent = [*recent[1:], packed]
        u, b, c = np.split(
            silu((w["conv1d.weight"][:, 0].T * recent).sum(0) + w["conv1d.bias"]), [inner, inner + states]
        )
        step, u = np.log1p(np.exp(step + w["dt_bias"])), u.reshape(heads, -1)
        s = np.exp(-step * np.exp(w["A_log"]))[:, None, None] * s + step[:, None, None] * b[:, None] * u[:, None]
        y = ((c @ s) + w["D"][:, None] * u).ravel() * silu(z)
        yield affine(w, "out_proj", y / np.sqrt((y * y).mean() + 1e-5) * w["scale"])


def ttt_linear(w, x, heads):
    """The gradient comes from tiny imaginary steps, so that the reference knows no derivative."""
    width = x.shape[1]
    d = width // heads
    inner = [w["start"][h].T for h in range(heads)]

    def f(matrix, vector, h):
        z = vector @ np.swapaxes(matrix, -1, -2)
        z = z - z.mean(-1, keepdims=True)
        z = z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-5)  # complex too, which numpy's variance is not
        return vector + z * w["scale"][h] + w["bias"][h]

    for x_t in x:
        maps = affine(w, "project_in", x_t)
        (q, k, v), eta = maps[: 3 * width].reshape(3, heads, d), sigmoid(maps[3 * width :])
        y = []
        for h in range(heads):
            tiny = 1e-30j * np.eye(d * d).reshape(-1, d, d)  # one entry at a time
            gradient = np.array([((f(inner[h] + each, k[h], h) - v[h]) ** 2).mean().imag / 2e-30 for each in tiny])
            inner[h] = inner[h] - eta[h] * gradient.reshape(d, d)
            y.append(f(inner[h], q[h], h))
        yield affine(w, "project_out", np.concatenate(y))


EQUATIONS = {
    **dict.fromkeys(("feedforward_x1", "feedforward_x2", "feedforward_x3", "feedforward_x4", "mlp"), feed_forward),
    "linear": linear, "frame_stack": frame_stack, "clock": clock, "rnn": rnn, "lstm": lstm, "gru": gru,
    "mingru": mingru, "minlstm": minlstm, "lru": lru, "s5": s5, "ffm": ffm, "shm": shm, "attention": attention,
    "linear_attention": linear_attention, "deltanet": deltanet, "gated_deltanet": deltanet,
    "slstm": slstm, "mlstm": mlstm, "deltaproduct": deltaproduct, "rwkv7": rwkv7, "mamba2": mamba2,
    "ttt_linear": ttt_linear,
}  # fmt: skip
ELSEWHERE = ("darqn", "darqn_released", "mamba")  # in test_pieces.py, and the public implementation's in test_mamba.py


def test_every_memory_has_equations():
    stateful = {name for name in names() if build(name, WIDTH).stateful}
    assert {*EQUATIONS, *ELSEWHERE} == stateful == {*names()} - {"birnn", "bilstm", "bigru"}
    assert names() == tuple(MEMORY)


def drawn(name):
    """Build a block with random parameters: zeros, ones and equal values would hide errors."""
    block, draws = build(name, WIDTH, projection=True, **OPTIONS.get(name, {})).double(), np.random.default_rng(0)
    for parameter in block.parameters():
        parameter.data = torch.tensor(draws.normal(0, 0.5, parameter.shape))
    return block


def drawn_inputs():
    """Draw inputs and resets: row 0 before the state is taken, row 1 at chosen places after it, row 2 anywhere."""
    draws, reset = np.random.default_rng(1), np.zeros((BATCH, BEFORE + TIME), dtype=bool)
    reset[0, BEFORE - 1] = True
    reset[1, [BEFORE, BEFORE + 12, BEFORE + 13, BEFORE + 33]] = True
    reset[2, BEFORE:] = draws.random(TIME) < 0.15
    return draws.normal(size=(BATCH, BEFORE + TIME, WIDTH)), reset


def expected(block, equations, x, reset, options):
    """Compute the outputs (T, D) of one row, episode by episode."""
    w = {name: value.detach().numpy() for name, value in (*block.named_parameters(), *block.named_buffers())}
    episodes = np.split(x, np.flatnonzero(reset))
    y = np.stack([y_t for episode in episodes for y_t in equations(w, episode, **options)])
    return y @ w["tail.projection.weight"].T + w["tail.projection.bias"] if "tail.projection.weight" in w else y


@pytest.mark.parametrize("name", EQUATIONS)
def test_sequences_that_go_on_follow_the_equations(name):
    block, (x, reset) = drawn(name), drawn_inputs()
    known = [expected(block, EQUATIONS[name], *row, OPTIONS.get(name, {})) for row in zip(x, reset, strict=True)]
    known = np.stack(known)[:, BEFORE:]
    x, reset = torch.tensor(x), torch.tensor(reset)
    with torch.no_grad():
        _, state = block.sequence(x[:, :BEFORE], reset=reset[:, :BEFORE])
        y, _ = block.sequence(x[:, BEFORE:], state, reset[:, BEFORE:])
    assert np.abs(y.numpy() - known).max() <= 1e-10 * np.abs(known).max()


# ---- parameters in closed form


def cell(gates):
    return lambda d: gates * (2 * d * d + 2 * d)


def both_ways(gates):
    return lambda d: gates * (3 * d * d // 2 + 2 * d)


def wide(multiple):
    return lambda d: 2 * multiple * d * d + (multiple + 1) * d


def darqn(d):
    return 11 * d * d + 10 * d


def mamba(d, states=16, taps=4, expand=2, rank=None):
    e, r = expand * d, rank or math.ceil(d / 16)
    return 3 * d * e + e * (taps + 3 * states + 2 * r + 3)


COUNTS = {
    **{f"feedforward_x{multiple}": wide(multiple) for multiple in (1, 2, 3, 4)},
    "mlp": wide(4),
    "linear": lambda d: d * d + d,
    "frame_stack": lambda d, frames=4: frames * d * d + d,
    "clock": lambda d, waves=16: 8 * d * d + 5 * d + 8 * waves * d,
    "rnn": cell(1), "lstm": cell(4), "gru": cell(3),
    "birnn": both_ways(1), "bilstm": both_ways(4), "bigru": both_ways(3),
    "darqn": darqn, "darqn_released": darqn, "mamba": mamba,
    "mingru": lambda d: 2 * d * d + 2 * d,
    "minlstm": lambda d: 3 * d * d + 3 * d,
    "lru": lambda d, states=None: 4 * (states or d) * d + 3 * (states or d) + d,
    "s5": lambda d, states=None: 2 * (states or d) * d + 3 * (states or d) // 2 + d,
    "ffm": lambda d, memory=32, context=4: (
        2 * d * d + 2 * d * memory + 2 * memory * context * d + 3 * d + 3 * memory + context
    ),
    "shm": lambda d, size=24, rows=128: 5 * size * d + 2 * d + rows * size,
    "attention": lambda d, heads=4, context=64: 4 * d * d + 4 * d,
    "linear_attention": lambda d, heads=4: 4 * d * d,
    "deltanet": lambda d, heads=4: 4 * d * d + heads * d + d // heads,
    "gated_deltanet": lambda d, heads=4: 5 * d * d + 2 * heads * d + 2 * heads + d // heads,
    "deltaproduct": lambda d, heads=2, steps=2: (
        (2 * steps + 3) * d * d + (steps + 1) * heads * d + 2 * heads + d // heads
    ),
    "rwkv7": lambda d, heads=2, rank=None: 4 * d * d + 6 * d * (rank or math.ceil(d / 8)) + 13 * d,
    "mamba2": lambda d, heads=4, states=64, taps=4, expand=2: (
        d * (3 * expand * d + 2 * states + heads) + (expand * d + 2 * states) * (taps + 1) + expand * d + 3 * heads
    ),
    "ttt_linear": lambda d, heads=2: 4 * d * d + d * d // heads + heads * d + 2 * d,
    "slstm": lambda d, heads=4: 4 * d * d + 4 * d * d // heads + 4 * d,
    "mlstm": lambda d, heads=4: 4 * d * d + 2 * heads * d + 4 * d + 2 * heads,
}  # fmt: skip


@pytest.mark.parametrize("d", [16, 24, 64])
@pytest.mark.parametrize("name", names())
def test_memories_have_so_many_parameters(name, d):
    for options in ({}, OPTIONS.get(name, {})):
        assert sum(each.numel() for each in build(name, d, **options).parameters()) == COUNTS[name](d, **options)
