"""mutate_snapshots.py CONVERTER FOLDER: checks that thousands of snapshots with random errors, drawn from a seed,
are either converted or refused by BadSnapshot, and that sizes claimed in a pickle allocate no memory."""

import copy
import importlib.util
import os
import pickle
import random
import resource
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import make_snapshot  # noqa: E402

STRANGE = [None, True, -1, 0, 1, 7, 1.5, float("nan"), "", "x", b"x", [], {}, (), [None], {"size": 1}, 10**30, 1 << 63,
           "alloc", "segment_free", "active_allocated"]


def places_of(value, path=()):
    """Yields the key path to every value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places_of(part, path + (key,))


def mutated(snapshot, draw):
    out = copy.deepcopy(snapshot)
    for _ in range(draw.choice((1, 1, 2, 5))):
        path = draw.choice(list(places_of(out)))
        if not path:
            continue
        owner = out
        for key in path[:-1]:
            owner = owner[key]
        change = draw.random()
        if change < 0.15:
            del owner[path[-1]]
        elif change < 0.25 and isinstance(owner, list):
            owner.insert(path[-1], copy.deepcopy(owner[path[-1]]))
        else:
            owner[path[-1]] = copy.deepcopy(draw.choice(STRANGE))
    return out


def mutated_bytes(data, draw):
    data = bytearray(data)
    for _ in range(draw.choice((1, 2, 8))):
        at = draw.randrange(len(data))
        data[at:at + draw.choice((0, 1, 1, 4))] = bytes(draw.randrange(256) for _ in range(draw.choice((0, 1, 1, 4))))
    return bytes(data[:draw.randrange(1, len(data) + 1)] if draw.random() < 0.2 else data)


def main():
    spec = importlib.util.spec_from_file_location("snapshot_to_trace", sys.argv[1])
    converter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(converter)
    os.makedirs(sys.argv[2], exist_ok=True)
    path = os.path.join(sys.argv[2], "mutated.pickle")
    whole = {"segments": make_snapshot.SEGMENTS, "device_traces": [make_snapshot.EVENTS],
             "allocator_settings": {"expandable_segments": False, "max_split_size": -1}}
    args = types.SimpleNamespace(snapshot=path, device=None, device_bytes=None, outside_bytes=None)
    assert converter.convert(whole, args).count("\n") > 10
    counts = {"converted": 0, "refused": 0}

    def answer(work):
        try:
            work()
            counts["converted"] += 1
        except converter.BadSnapshot:
            counts["refused"] += 1

    def convert_file(data):
        with open(path, "wb") as file:
            file.write(data)
        converter.convert(converter.load(path), args)

    draw = random.Random(7)
    for _ in range(3000):
        broken = mutated(whole, draw)
        answer(lambda: converter.convert(broken, args))
    data = pickle.dumps(whole)
    for _ in range(3000):
        broken = mutated_bytes(data, draw)
        answer(lambda: convert_file(broken))
    print(counts)
    assert counts["converted"] > 100 and counts["refused"] > 1000
    # Pickles of about a dozen bytes that claim a memo of 2^32 entries and a string of 2^62 bytes.
    before = counts["refused"]
    for claim in (b"\x80\x04]r\xff\xff\xff\xff.", b"\x80\x04\x8d" + (1 << 62).to_bytes(8, "little") + b"x.",
                  b"\x80\x04\x8b\xff\xff\xff\x7f."):
        answer(lambda: convert_file(claim))
    assert counts["refused"] == before + 3
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert taken < 512 << 10, f"{taken} KiB were taken"


main()
