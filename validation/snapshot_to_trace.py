#!/usr/bin/env python3
"""Converts a PyTorch memory snapshot into an allocation trace for `kvsim validate allocator`.

    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    ...                                                   # the run
    torch.cuda.memory._dump_snapshot("run.pickle")

    python3 snapshot_to_trace.py run.pickle -o run.jsonl --device-bytes 85899345920
    kvsim validate allocator run.jsonl

Needs only Python's standard library. The pickle is read without importing or calling anything that
it names: a snapshot consists of plain containers, and any other pickle is refused.

Recording should begin before the first allocation. Otherwise, blocks that were already in use are
written as allocations at the start of the trace, in the order of their addresses.

A snapshot does not record torch.cuda.empty_cache(), so the calls are inferred. Segments were released
on request if the next segment would have fitted below the highest reserved total of the recording,
or if no segment was allocated after them.
"""

import argparse
import contextlib
import json
import os
import pickle
import sys
import tempfile

try:
    import resource
except ImportError:  # this system has no resource limits
    resource = None

SEGMENT_TAKEN = ("segment_alloc", "segment_map")
SEGMENT_GIVEN = ("segment_free", "segment_unmap")
KNOWN = SEGMENT_TAKEN + SEGMENT_GIVEN + ("alloc", "free_requested", "free_completed", "oom")
IGNORED = ("snapshot", "user_defined")


class BadSnapshot(Exception):
    pass


class PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and strings, and refuses everything that needs an import."""

    def find_class(self, module, name):
        raise BadSnapshot(f"the pickle asks for {module}.{name}: not a memory snapshot")

    def persistent_load(self, pid):
        raise BadSnapshot("the pickle refers to objects outside itself: not a memory snapshot")


@contextlib.contextmanager
def bounded_memory(file_bytes):
    """Limits memory, because a few bytes of a pickle can request all of it. A snapshot needs about 20 times its file size."""
    if resource is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    most = used + (1 << 30) + 64 * file_bytes
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def load(path):
    try:
        with open(path, "rb") as file, bounded_memory(os.path.getsize(path)):
            return PlainUnpickler(file).load()
    except OSError as error:
        raise BadSnapshot(error.strerror)
    except BadSnapshot:
        raise
    except Exception as error:  # a broken pickle may raise nearly anything
        raise BadSnapshot(f"not a pickle: {type(error).__name__}: {error}")


def number(value, what, least=0):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadSnapshot(f"{what}: expected an integer of at least {least}, got {value!r}")
    return value


def entries(owner, key, place):
    """Returns the list of dictionaries in owner[key]; an empty list if the key is missing."""
    found = owner.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise BadSnapshot(f"{place}: expected a list of dictionaries")
    return found


def events_of(snapshot, device):
    if not isinstance(snapshot, dict) or "device_traces" not in snapshot:
        raise BadSnapshot("expected a dictionary with device_traces and segments")
    traces = snapshot["device_traces"]
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise BadSnapshot("device_traces: expected a list of lists")
    recorded = [i for i, trace in enumerate(traces) if trace]
    if device is None:
        if len(recorded) != 1:
            raise BadSnapshot(f"devices with events: {recorded}; choose one with --device")
        device = recorded[0]
    if not 0 <= device < len(traces) or not traces[device]:
        raise BadSnapshot(f"device {device} has no events; those that have: {recorded}")
    events = []
    for i, entry in enumerate(traces[device]):
        place = f"device_traces[{device}][{i}]"
        if not isinstance(entry, dict) or "action" not in entry:
            raise BadSnapshot(f"{place}: expected a dictionary with an action")
        action = entry["action"]
        if action in IGNORED:
            continue
        if not isinstance(action, str) or action not in KNOWN:
            raise BadSnapshot(f"{place}: unknown action {action!r}")
        events.append({
            "action": action,
            "size": number(entry.get("size"), f"{place}.size", 1),
            "address": 0 if action == "oom" else number(entry.get("addr"), f"{place}.addr"),
            "stream": number(entry.get("stream", 0), f"{place}.stream"),
        })
    return device, events


def settings_of(snapshot):
    """Returns the settings in the syntax of PYTORCH_CUDA_ALLOC_CONF."""
    settings = snapshot.get("allocator_settings") or {}
    if not isinstance(settings, dict):
        return ""
    text = settings.get("PYTORCH_CUDA_ALLOC_CONF") or settings.get("PYTORCH_ALLOC_CONF")
    if isinstance(text, str) and text:
        return text
    parts = []
    if settings.get("expandable_segments"):
        parts.append("expandable_segments:True")
    split = settings.get("max_split_size")
    if isinstance(split, int) and 0 < split < 1 << 60:
        parts.append(f"max_split_size_mb:{split >> 20}")
    threshold = settings.get("garbage_collection_threshold")
    if isinstance(threshold, float) and threshold > 0:
        parts.append(f"garbage_collection_threshold:{threshold}")
    return ",".join(parts)


def initial_state(snapshot, device, events):
    """Returns the state before the first event: blocks in use as (address, size, stream), segment sizes,
    and the bytes mapped in expandable segments."""
    live = {}
    segments = {}
    mapped = 0
    for i, segment in enumerate(entries(snapshot, "segments", "segments")):
        if segment.get("device") != device:
            continue
        place = f"segments[{i}]"
        address = number(segment.get("address", 0), f"{place}.address")
        size = number(segment.get("total_size"), f"{place}.total_size")
        stream = number(segment.get("stream", 0), f"{place}.stream")
        if segment.get("is_expandable"):
            mapped += size
        else:
            segments[address] = size
        for block in entries(segment, "blocks", f"{place}.blocks"):
            size = number(block.get("size", 0), f"{place}.blocks: size")
            if str(block.get("state", "")).startswith("active"):
                requested = number(block.get("requested_size") or size, f"{place}.blocks: requested_size", 1)
                live[number(block.get("address", address), f"{place}.blocks: address")] = (requested, stream)
            address += size
    for event in reversed(events):
        action, address = event["action"], event["address"]
        if action == "alloc":
            live.pop(address, None)
        elif action == "free_completed":
            live[address] = (event["size"], event["stream"])
        elif action == "segment_alloc":
            segments.pop(address, None)
        elif action == "segment_free":
            segments[address] = event["size"]
        elif action == "segment_map":
            mapped -= event["size"]
        elif action == "segment_unmap":
            mapped += event["size"]
    blocks = sorted((address, size, stream) for address, (size, stream) in live.items())
    return blocks, [size for _, size in sorted(segments.items())], max(mapped, 0)


def requested_caches(events, reserved):
    """Returns the indices of events that directly follow an inferred empty_cache()."""
    highest = total = reserved
    for event in events:
        if event["action"] in SEGMENT_TAKEN:
            total += event["size"]
            highest = max(highest, total)
        elif event["action"] in SEGMENT_GIVEN:
            total -= event["size"]
    places = set()
    total = reserved
    i = 0
    while i < len(events):
        action = events[i]["action"]
        if action not in SEGMENT_GIVEN:
            if action in SEGMENT_TAKEN:
                total += events[i]["size"]
            i += 1
            continue
        first, before = i, total
        while i < len(events) and events[i]["action"] in SEGMENT_GIVEN:
            total -= events[i]["size"]
            i += 1
        after = events[i] if i < len(events) else None
        if after is None or after["action"] not in SEGMENT_TAKEN + ("oom",):
            places.add(first)
        elif after["action"] in SEGMENT_TAKEN and before + after["size"] <= highest:
            places.add(first)
    return places


def convert(snapshot, args):
    device, events = events_of(snapshot, args.device)
    blocks, segments, mapped = initial_state(snapshot, device, events)
    caches = requested_caches(events, sum(segments) + mapped)
    streams = {}
    ids = {}
    lines = []

    def stream_of(raw):
        return streams.setdefault(raw, len(streams))

    def write(op, **keys):
        lines.append(json.dumps({"op": op, **keys}))

    header = {
        "format": "kvsim.allocator-trace/1",
        "source": f"PyTorch snapshot {os.path.basename(args.snapshot)}, device {device}",
        "alloc_conf": settings_of(snapshot),
    }
    if args.device_bytes is not None:
        header["device_bytes"] = args.device_bytes
    if args.outside_bytes is not None:
        header["outside_bytes"] = args.outside_bytes
    if blocks:
        header["initial_blocks"] = len(blocks)
    lines.append(json.dumps(header))

    for size in segments:
        write("segment_alloc", size=size)
    if mapped:
        write("segment_map", size=mapped)
    for address, size, stream in blocks:
        ids[address] = len(ids)
        write("alloc", id=ids[address], size=size, stream=stream_of(stream))
    next_id = len(ids)
    i = 0
    while i < len(events):
        event = events[i]
        action, address = event["action"], event["address"]
        if action == "alloc":
            if address in ids:
                raise BadSnapshot(f"event {i}: address {address} is allocated twice")
            ids[address] = next_id
            write("alloc", id=next_id, size=event["size"], stream=stream_of(event["stream"]))
            next_id += 1
        elif action == "free_requested":
            if address not in ids:
                raise BadSnapshot(f"event {i}: address {address} is freed but not in use")
            following = events[i + 1] if i + 1 < len(events) else None
            if following and following["action"] == "free_completed" \
                    and following["address"] == address:
                write("free", id=ids.pop(address))
                i += 1
            else:
                write("free_requested", id=ids[address])
        elif action == "free_completed":
            if address not in ids:
                raise BadSnapshot(f"event {i}: address {address} is freed but not in use")
            write("free_completed", id=ids.pop(address))
        elif action == "oom":
            write("oom", size=event["size"], stream=stream_of(event["stream"]))
        else:
            if action in SEGMENT_GIVEN and i in caches:
                run = i
                while run < len(events) and events[run]["action"] in SEGMENT_GIVEN:
                    given = events[run]
                    write(given["action"], size=given["size"], address=given["address"])
                    run += 1
                write("empty_cache")
                i = run
                continue
            write(action, size=event["size"], address=address, stream=stream_of(event["stream"]))
        i += 1
    return "\n".join(lines) + "\n"


def write_whole(path, text):
    """Writes the file atomically."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def main():
    parser = argparse.ArgumentParser(description="PyTorch memory snapshot to allocation trace")
    parser.add_argument("snapshot", help="file written by torch.cuda.memory._dump_snapshot()")
    parser.add_argument("-o", "--out", help="trace to write (standard output)")
    parser.add_argument("--device", type=int, help="device, if several have events")
    parser.add_argument("--device-bytes", type=int, help="memory of the device")
    parser.add_argument("--outside-bytes", type=int, help="memory of the device used outside PyTorch: context, other processes")
    args = parser.parse_args()
    try:
        text = convert(load(args.snapshot), args)
        if args.out:
            write_whole(args.out, text)
        else:
            sys.stdout.write(text)
    except (BadSnapshot, OSError) as error:
        print(f"snapshot_to_trace: {args.snapshot}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
