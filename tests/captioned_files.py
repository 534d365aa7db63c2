"""Small images, depth maps and shards for tests."""

import io
import json
import struct
import tarfile
import zlib

from PIL import Image


def picture(shade=100, size=(20, 16), kind="PNG"):
    file = io.BytesIO()
    Image.new("RGB", size, (shade, 255 - shade, 7)).save(file, kind)
    return file.getvalue()


def depth(steps=1500, size=(20, 16), mode="I;16"):
    image = Image.new("L", size, 90) if mode == "L" else Image.new("I;16", size, steps)
    if mode != "L":
        image.putpixel((0, 0), 0)
        image.putpixel((1, 0), 65535)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def shard(path, samples):
    with tarfile.open(path, "w") as tar:
        for key, files in samples.items():
            for kind, content in files.items():
                entry = tarfile.TarInfo(f"{key}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return path


def words(*captions):
    return json.dumps({"captions": captions}).encode()


def bomb(width, height):
    """A PNG of a few bytes that claims to have that many pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
