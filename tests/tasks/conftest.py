import io
import json
import tarfile

import pytest
from PIL import Image


def encoded(shade, size=(20, 16), kind="webp"):
    file = io.BytesIO()
    Image.new("RGB", size, (shade, 255 - shade, 7)).save(file, kind, **({"lossless": True} if kind == "webp" else {}))
    return file.getvalue()


@pytest.fixture
def shard(tmp_path):
    """Writes a shard of `count` images, one shade each; the ones in `corrupt` are cut short."""

    def write(name="train.tar", count=12, corrupt=(), labels="cls", first=0):
        path = tmp_path / name
        with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as tar:
            for i in range(first, first + count):
                picture = encoded(10 * (i % 25))
                text = str(i % 3) if labels == "cls" else json.dumps({"label": i % 3})
                content = {"webp": picture[:30] if i in corrupt else picture, labels: text.encode()}
                for kind, data in content.items():
                    entry = tarfile.TarInfo(f"{i:06d}.{kind}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
        return path

    return write
