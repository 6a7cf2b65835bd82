"""Reads a safetensors file as NumPy arrays without other packages."""

import json
import struct

import numpy as np


def read(path):
    """Returns (metadata, {name: array}); BF16 is converted to float32."""
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    body = data[8 + length:]
    metadata = header.pop("__metadata__", {})
    arrays = {}
    end = 0
    for name, entry in header.items():
        begin, end_of_this = entry["data_offsets"]
        raw, end = body[begin:end_of_this], max(end, end_of_this)
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F16": "<f2", "F32": "<f4", "I32": "<i4"}[entry["dtype"]])
        arrays[name] = values.reshape(entry["shape"])
    assert end == len(body), "bytes behind the last tensor"
    return metadata, arrays
