"""Chained block hashes with Python integers, one block after the other."""

M = 2**64
MIX_1, MIX_2, GAMMA, RATIO = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15, 0xD1342543DE82EF95


def mix(x):
    x = (x ^ (x >> 30)) * MIX_1 % M
    x = (x ^ (x >> 27)) * MIX_2 % M
    return x ^ (x >> 31)


def unmix(x):
    x = (x ^ (x >> 31) ^ (x >> 62)) * pow(MIX_2, -1, M) % M
    x = (x ^ (x >> 27) ^ (x >> 54)) * pow(MIX_1, -1, M) % M
    return x ^ (x >> 30) ^ (x >> 60)


def content_hash(tokens):
    total = 0
    for k, token in enumerate(tokens):
        scrambled = (token + 1) * MIX_1 % M
        scrambled ^= scrambled >> 32
        total += scrambled * (mix((k + 1) * GAMMA % M) | 1)
    return mix(total % M)


def chain(contents, parent):
    hashes = []
    for content in contents:
        parent = mix((unmix(parent) * RATIO + content) % M) or GAMMA
        hashes.append(parent)
    return hashes


def hash_sequence(tokens, *, block_size, parent, keys=None):
    full = len(tokens) // block_size
    contents = [content_hash(tokens[j * block_size : (j + 1) * block_size]) for j in range(full)]
    contents = [mix((c + k) % M) if k else c for c, k in zip(contents, keys or [0] * full, strict=True)]
    return chain(contents, parent)


def image_keys(images, *, num_tokens, block_size, digest):
    """Keys of one sequence's full blocks; `images` are (id, start, length), `digest` hashes an id."""
    keys = [0] * (num_tokens // block_size)
    for image, start, length in images:
        for j in sorted({t // block_size for t in range(start, start + length)}):
            if j < len(keys):
                keys[j] = (keys[j] + mix((digest(image) + (start - j * block_size) * GAMMA) % M)) % M
    return keys
