"""Writes pickles in the format of torch.cuda.memory._dump_snapshot for the tests: a run solved by hand
from the allocator's rules (whole.pickle), the same run recorded starting at its fifth event (late.pickle), a
pickle that would run code in an unrestricted loader, and a truncated pickle."""

import os
import pickle
import sys

MIB = 1 << 20
A, B, C = 0x7F0000000000, 0x7F0010000000, 0x7F0020000000


def event(action, addr, size):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1, "frames": []}


def freed(addr, size):
    return [event("free_requested", addr, size), event("free_completed", addr, size)]


EVENTS = [
    event("segment_alloc", A, 2 * MIB),
    event("alloc", A, 1000),
    event("segment_alloc", B, 20 * MIB),
    event("alloc", B, 3 * MIB),
    event("alloc", B + 3 * MIB, 12 * MIB),  # from the remaining 17 MiB
    *freed(B, 3 * MIB),
    event("segment_alloc", C, 30 * MIB),
    event("alloc", C, 30 * MIB),
    {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 1, "frames": []},
    *freed(C, 30 * MIB),
    event("segment_free", C, 30 * MIB),  # empty_cache()
    event("alloc", B, 2 * MIB),  # best fit: 3 MiB here, 5 at the segment's end; a rest of 1 MiB is not split off
    {"action": "oom", "device_free": 78 * MIB, "size": 200 * MIB, "stream": 0, "time_us": 1},
]


def block(addr, size, requested, state):
    return {"address": addr, "size": size, "requested_size": requested, "state": state}


SEGMENTS = [
    {"device": 0, "address": A, "total_size": 2 * MIB, "stream": 0, "segment_type": "small",
     "is_expandable": False, "blocks": [block(A, 1024, 1000, "active_allocated"),
                                        block(A + 1024, 2 * MIB - 1024, 0, "inactive")]},
    {"device": 0, "address": B, "total_size": 20 * MIB, "stream": 0, "segment_type": "large",
     "is_expandable": False, "blocks": [block(B, 3 * MIB, 2 * MIB, "active_allocated"),
                                        block(B + 3 * MIB, 12 * MIB, 12 * MIB, "active_allocated"),
                                        block(B + 15 * MIB, 5 * MIB, 0, "inactive")]},
]


class Evil:
    def __reduce__(self):
        return (os.system, ("touch evil-was-here",))


def main():
    folder = sys.argv[1]

    def write(name, value):
        with open(os.path.join(folder, name), "wb") as file:
            pickle.dump(value, file)

    def snapshot(events):
        return {"segments": SEGMENTS, "device_traces": [events, []],
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False,
                                       "max_split_size": -1, "garbage_collection_threshold": 0.0},
                "external_annotations": []}

    write("whole.pickle", snapshot(EVENTS))
    write("late.pickle", snapshot(EVENTS[4:]))
    write("evil.pickle", snapshot(EVENTS + [Evil()]))
    write("unknown.pickle", snapshot(EVENTS + [event("teleport", A, 1)]))
    write("list.pickle", [1, 2, 3])
    with open(os.path.join(folder, "cut.pickle"), "wb") as file:
        file.write(pickle.dumps(snapshot(EVENTS))[:-40])


if __name__ == "__main__":
    main()
