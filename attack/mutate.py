"""Damage: bytes cut, flipped, doubled and garbled; JSON with parts replaced, removed and doubled; tensors of other
values, types and shapes in a file that is sound. And `Target`, what is damaged."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ODD = [None, True, -1, 0, 1e30, float("nan"), float("inf"), 10**400, "", "x", "/etc/passwd", [], {}, [[]], {"id": 1}]


def damage(content: bytes, dice: random.Random) -> bytes:
    """The same bytes with one kind of damage."""
    kind = dice.randrange(7)
    place = dice.randrange(len(content)) if content else 0
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[place:]
    if kind == 2:
        return content[:place] + content[place + dice.randint(1, 64) :]
    if kind == 3:
        return content[:place] + dice.randbytes(dice.randint(1, 64)) + content[place:]
    if kind == 4:
        return dice.choice((b"", b"\x00" * len(content), dice.randbytes(len(content)), b"\xff\xfe", b"[1, 2]", b"{}"))
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 4, 16)) if content else 0):
        # Headers decide more than bodies, so half of the changes hit the first bytes.
        where = dice.randrange(min(len(content), 64)) if dice.random() < 0.5 else dice.randrange(len(content))
        changed[where] = dice.randrange(256) if kind == 5 else changed[where] ^ (1 << dice.randrange(8))
    return bytes(changed)


def mutate(value: Any, dice: random.Random) -> Any:
    """The same structure with one part replaced, removed or doubled."""
    value = copy.deepcopy(value)
    node = value
    while isinstance(node, dict | list) and node:
        key = dice.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if isinstance(node[key], dict | list) and node[key] and dice.random() < 0.8:
            node = node[key]
            continue
        action = dice.randrange(3)
        if action == 0:
            node[key] = dice.choice(ODD)
        elif action == 1:
            del node[key]
        elif isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
        else:
            node[f"{key}x"] = node.pop(key)
        break
    return value


def damage_json(content: bytes, dice: random.Random) -> bytes:
    """A JSON file with damaged bytes or, more often, valid JSON of the wrong structure."""
    if dice.random() < 0.25:
        return damage(content, dice)
    value = json.loads(content)
    for _ in range(dice.randint(1, 3)):
        value = mutate(value, dice)
    return json.dumps(value).encode()


def damage_lines(content: bytes, dice: random.Random) -> bytes:
    """A file of JSON lines with damaged bytes, or with one line of the wrong structure, removed, doubled or cut."""
    if dice.random() < 0.25:
        return damage(content, dice)
    lines = content.splitlines()
    place = dice.randrange(len(lines))
    action = dice.randrange(4)
    if action == 0:
        lines[place] = damage_json(lines[place], dice)
    elif action == 1:
        del lines[place]
    elif action == 2:
        lines.insert(place, lines[place])
    else:
        lines[place] = lines[place][: dice.randrange(len(lines[place]))]
    return b"\n".join(lines) + b"\n"


def damage_tensors(content: bytes, dice: random.Random) -> bytes:
    """A safetensors file with damaged bytes or, more often, a sound one with a tensor changed, removed or added."""
    from safetensors.torch import load, save

    if dice.random() < 0.4:
        return damage(content, dice)
    tensors = load(content)
    name = dice.choice(sorted(tensors))
    old = tensors.pop(name)
    wide = old.float() if old.is_floating_point() else old
    kinds = {
        "removed": None, "empty": old[:0] if old.ndim else None, "cut": old[:-1] if old.ndim else None,
        "flat": old.flatten(), "nan": torch.full_like(wide, float("nan"), dtype=torch.float32),
        "infinite": torch.full_like(wide, float("inf"), dtype=torch.float32),
        "complex": wide.to(torch.complex64), "byte": wide.to(torch.float8_e5m2), "whole": wide.to(torch.int64),
        "double": wide.double(), "switch": wide.to(torch.bool),
    }  # fmt: skip
    changed = kinds[dice.choice(list(kinds))]
    if changed is not None:
        tensors[dice.choice((name, name, name, "", "added", "../x"))] = changed.contiguous()
    return save(tensors)


@dataclass(frozen=True)
class Target:
    """A file to damage and who reads it. read: gives what was read, or raises. sound: whether what was read can be
    believed; the damage may not have touched what matters. called: other words that name the file in a refusal."""

    file: Path
    read: Callable[[], Any]
    how: Callable[[bytes, random.Random], bytes] = damage
    sound: Callable[[Any], bool] = lambda found: True
    called: tuple[str, ...] = ()
