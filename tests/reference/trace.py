"""Traces as lists: one request, one block, one line at a time."""

import json


def prefix_keys(requests, namespaces):
    """For each reference of the flat list of blocks: namespace and all ids from the head up to it."""
    return [
        (namespace, *request[: depth + 1])
        for request, namespace in zip(requests, namespaces, strict=True)
        for depth in range(len(request))
    ]


def prefix_numbers(requests):
    """Number of the prefix at each reference, in order of first appearance: a trie of (parent, id)."""
    children, numbers = {}, []
    for request in requests:
        parent = None
        for block in request:
            parent = children.setdefault((parent, block), len(children))
            numbers.append(parent)
    return numbers


def stream_keys(requests, namespaces):
    """For each reference: namespace and its own id."""
    return [(namespace, block) for request, namespace in zip(requests, namespaces, strict=True) for block in request]


def first_appearance(keys):
    """Number the distinct keys in order of first appearance."""
    numbers = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def block_tokens(requests, input_tokens, block_size):
    """Tokens of each block: as many as are left of the prompt, at most a block."""
    tokens = []
    for request, left in zip(requests, input_tokens, strict=True):
        for _ in request:
            tokens.append(min(block_size, left))
            left -= tokens[-1]
    return tokens


def unhashed_tokens(requests, input_tokens, block_size):
    """Tokens of each prompt that are in none of its blocks."""
    return [
        left - sum(block_tokens([request], [left], block_size))
        for request, left in zip(requests, input_tokens, strict=True)
    ]


def cut(tokens, num_hashed, block_size):
    """Name the blocks of a prompt by all tokens up to their end; what does not fill a block counts if it is the end."""
    blocks = []
    for start in range(0, num_hashed, block_size):
        end = min(start + block_size, num_hashed)
        if end - start == block_size or end == len(tokens):
            blocks.append(tuple(tokens[:end]))
    return blocks


def interleave(sessions, starts_s):
    """Merge lists of (arrival, request) by time; at equal times in the order of the sessions."""
    merged = []
    for number, (session, start_s) in enumerate(zip(sessions, starts_s, strict=True)):
        for place, (arrival_s, request) in enumerate(session):
            merged.append((start_s + arrival_s, number, place, request))
    return [(arrival_s, request) for arrival_s, _, _, request in sorted(merged, key=lambda item: item[:3])]


def read_json_lines(lines):
    """Read good lines, one at a time: arrival, tokens in and out, block ids, session, namespace."""
    records = []
    for line in lines:
        fields = json.loads(line)
        arrival_s = fields["arrival_s"] if "arrival_s" in fields else fields["timestamp"] / 1000
        lengths = fields["input_length"], fields["output_length"]
        names = fields.get("session"), fields.get("namespace")
        records.append((arrival_s, *lengths, fields.get("hash_ids", []), *names))
    return records
