"""Keys and values of the tokens that have been read, layer by layer, and which of them a new token attends to."""

import torch


def causal(queries, keys, sequences):
    return keys <= queries


def within(window):
    """Which keys a query attends to, of the last `window`: Source: `sliding_window_causal_mask_function`."""

    def attends(queries, keys, sequences):
        found = queries.new_ones((), dtype=torch.bool)
        found = found & (keys > queries - window)
        return found & (keys <= queries)

    return attends


def chunked(window, padding):
    """Which keys a query attends to, of its own chunk. Source: `chunked_causal_mask_function`."""

    def attends(queries, keys, sequences):
        found = queries.new_ones((), dtype=torch.bool)
        same = torch.eq((keys - padding[sequences]) // window, (queries - padding[sequences]) // window)
        found = found & same
        del same
        return found & (keys <= queries)

    return attends


class Growing:
    """What a layer keeps in tensors that grow by a copy: `DynamicLayer`.

    Attributes:
        keys, values: (B, K, T, D) each; None before the first pass. seen: tokens that have been read. eager: whether the scores
            exist, which always have a mask. near: whether a token attends to a window alone.
    """

    near = False

    def __init__(self, eager=False):
        self.keys = self.values = None
        self.seen, self.eager = 0, eager

    def update(self, keys, values):  # (B, K, S, D) each -> (B, K, T + S, D) each
        if self.keys is None:
            self.begin(keys)
        self.seen = self.seen + keys.size(2)
        return self.put(keys, values)

    def begin(self, keys):
        self.keys = self.values = keys.new_empty(0)

    def put(self, keys, values):
        self.keys = torch.cat((self.keys, keys), dim=-2)
        self.values = torch.cat((self.values, values), dim=-2)
        return self.keys, self.values

    def mask(self, x):  # (B, S, H): None where the kernel needs none
        return masked(self, x, self.seen, 0, self.seen + x.size(1), causal, True)


class Window(Growing):
    """What a layer keeps whose tokens attend to the last W alone: `DynamicSlidingWindowLayer`."""

    near = True

    def __init__(self, window, eager=False):
        super().__init__(eager)
        self.window, self.width = window, None

    def begin(self, keys):
        super().begin(keys)
        self.width = torch.tensor(self.window, device=keys.device)

    def put(self, keys, values):
        keys, values = torch.cat((self.keys, keys), dim=-2), torch.cat((self.values, values), dim=-2)
        self.keys, self.values = keys[:, :, 1 - self.window :], values[:, :, 1 - self.window :]
        return keys, values

    def mask(self, x):
        count = self.kept + x.size(1)
        return masked(self, x, self.seen, self.seen - self.kept, count, within(self.window), count < self.window)

    @property
    def kept(self):
        return 0 if self.keys is None else self.keys.size(2)

    def beside(self):
        return Beside(self)


class Beside:
    """What has the mask of layers that attend to all tokens in a model whose every layer has a window: as long as a window's."""

    def __init__(self, layer):
        self.layer, self.eager = layer, layer.eager

    def mask(self, x):
        layer = self.layer
        return masked(self, x, layer.seen, layer.seen - layer.kept, layer.kept + x.size(1), causal, True)


class Nothing(Growing):
    """No cache, as in training: keys and values pass through."""

    def update(self, keys, values):
        return keys, values


class Near(Nothing, Window):
    """The same of a layer whose tokens attend to the last W alone."""


class Chunk(Near):
    """The same where sequences are cut every W tokens, and none attends to an earlier chunk (Llama 4)."""

    def mask(self, x):
        B, S, _ = x.shape
        padding = torch.zeros(B, dtype=torch.int64, device=x.device)
        return masked(self, x, 0, 0, S, chunked(self.window, padding), S < self.window)


class Room(Growing):
    """What a layer keeps in tensors with room for N tokens from the first pass on: `StaticLayer`."""

    def __init__(self, room):
        super().__init__()
        self.room, self.counted = room, None

    def update(self, keys, values):
        if self.keys is None:
            self.begin(keys, values)
        places = torch.arange(keys.size(2), device=keys.device) + self.counted
        self.counted.add_(keys.size(2))
        self.keys.index_copy_(2, places, keys)
        self.values.index_copy_(2, places, values)
        return self.keys, self.values

    def begin(self, keys, values):
        B, K, _, D = keys.shape
        self.keys = torch.zeros(B, K, self.room, D, dtype=keys.dtype, device=keys.device)
        self.values = torch.zeros(B, K, self.room, values.size(-1), dtype=keys.dtype, device=keys.device)
        self.counted = self.seen = torch.tensor(0, device=keys.device)

    def mask(self, x):  # a prompt is alone in its room, and its keys are cut out of it
        return mask(x, self.seen, 0, self.room, causal) if x.size(1) == 1 else None


def kinds(cache):
    """Each kind of layer -> the first of that kind: layers of a kind have one mask."""
    return {type(layer): layer for layer in reversed(cache)}


def masked(layer, x, seen, first, count, attends, needless):
    """A layer's mask: as numbers to add to scores that exist; else as truths, and None where the kernel needs none.

    Source: `eager_mask`, `sdpa_mask`.
    """
    if needless and not layer.eager:
        return None
    found = mask(x, seen, first, count, attends)
    if not layer.eager:
        return found
    return torch.where(found, torch.zeros((), dtype=x.dtype, device=x.device), torch.finfo(x.dtype).min)


def mask(x, seen, first, count, attends):
    """Which of so many keys, from the first on, each new token attends to: (B, 1, S, T). Source: `sdpa_mask`."""
    B, S, _ = x.shape
    sequences, heads = torch.arange(B, device=x.device), torch.arange(1, device=x.device)  # which nobody asks
    queries = torch.arange(S, device=x.device) + seen
    keys = torch.arange(count, device=x.device) + first
    found = attends(queries[None, None, :, None], keys[None, None, None, :], sequences[:, None, None, None])
    del sequences, heads
    return found.expand(B, -1, S, count)
