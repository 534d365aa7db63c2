"""The kinds of object that stand on tables, among them the flat ones that carry others."""

from __future__ import annotations

from . import solids
from .object_kinds import CLOTH, Kind, Part, Top, ball, box, pillow, rod, round_part

BRIGHT = ("red", "orange", "yellow", "green", "teal", "blue", "purple", "pink", "white", "black", "grey")


def _handle(x: float, z: float, width: float, height: float, thick: float, paint: str = "body") -> Part:
    """A flat loop that stands out to the right from the wall at x."""
    return box((x + width / 2, 0, z), (width, thick * 1.5, height), paint, "y").tube(thick)


def _bottle(width: float, body: float, paint: str) -> tuple[Part, ...]:
    return (
        round_part(solids.CYLINDER, (0, 0, 0), width, body),
        round_part(solids.taper(1.0, 0.38), (0, 0, body), width, width * 0.7),
        round_part(solids.CYLINDER, (0, 0, body + width * 0.68), width * 0.38, width * 0.7),
        round_part(solids.CYLINDER, (0, 0, body + width * 1.36), width * 0.46, width * 0.26, paint),
        round_part(solids.CYLINDER, (0, 0, body * 0.25), width * 1.02, body * 0.5, "accent"),
    )


def _book(width: float, depth: float, thick: float) -> tuple[Part, ...]:
    cover = 0.004
    return (
        box((0.003, 0, cover), (width - 0.008, depth - 0.01, thick - 2 * cover), "paper"),
        *(box((0, 0, z), (width, depth, cover)) for z in (0.0, thick - cover)),
        box((-width / 2 + 0.003, 0, 0), (0.006, depth, thick)),
    )


_FRUIT = ("red", "green", "yellow")
_CUP = round_part(solids.taper(0.72, 1.0), (0, 0, 0), 0.09, 0.065).hollow(0.004)
_WHEELS = tuple(rod((s * 0.05, t * 0.032, 0), (0.032, 0.014, 0.032), "rubber", "y") for s in (-1, 1) for t in (-1, 1))

TABLEWARE: tuple[Kind, ...] = (
    Kind("mug", (
        (round_part(solids.CYLINDER, (0, 0, 0), 0.084, 0.1).hollow(0.005), _handle(0.04, 0.022, 0.034, 0.058, 0.009)),
        (round_part(solids.barrel(0.84), (0, 0, 0), 0.094, 0.09).hollow(0.005),
         _handle(0.044, 0.02, 0.03, 0.05, 0.009), rod((0, 0, 0.01), (0.074, 0.074, 0.055), "coffee")),
    ), ("ceramic",), BRIGHT),
    Kind("cup", (
        (_CUP, _handle(0.038, 0.022, 0.026, 0.034, 0.007), round_part(solids.BOWL, (0, 0, -0.012), 0.15, 0.014)),
    ), ("ceramic",), BRIGHT),
    Kind("glass", (
        (round_part(solids.taper(0.8, 1.0), (0, 0, 0), 0.075, 0.13).hollow(0.003, 0.012),
         round_part(solids.taper(0.8, 0.95), (0, 0, 0.012), 0.066, 0.07, "accent")),
        (round_part(solids.BOWL, (0, 0, 0.09), 0.085, 0.08).hollow(0.003), rod((0, 0, 0.004), (0.009, 0.009, 0.09)),
         round_part(solids.DOME, (0, 0, 0), 0.07, 0.008)),
    ), ("glass",), ("white", "teal", "grey", "blue"), stretch=0.04),
    Kind("bowl", (
        (round_part(solids.BOWL, (0, 0, 0.008), 0.17, 0.075).hollow(0.006), rod((0, 0, 0), (0.07, 0.07, 0.02))),
        (round_part(solids.taper(0.5, 1.0), (0, 0, 0), 0.2, 0.06).hollow(0.006),),
    ), ("ceramic", "wooden"), BRIGHT),
    Kind("bottle", (_bottle(0.075, 0.17, "white"), _bottle(0.062, 0.13, "black")), ("glass", "plastic"),
         ("green", "teal", "blue", "brown", "red", "white"), lies=0.12),
    Kind("can", (
        (round_part(solids.CYLINDER, (0, 0, 0.004), 0.066, 0.112),
         *(rod((0, 0, z), (0.058, 0.058, 0.006), "steel") for z in (0.0, 0.114)),
         round_part(solids.CYLINDER, (0, 0, 0.035), 0.067, 0.05, "accent")),
    ), ("metal",), BRIGHT, stretch=0.03, lies=0.15),
    Kind("jar", (
        (round_part(solids.barrel(0.86), (0, 0, 0), 0.1, 0.12), rod((0, 0, 0.12), (0.085, 0.085, 0.022), "steel"),
         round_part(solids.CYLINDER, (0, 0, 0.035), 0.101, 0.045, "paper")),
    ), ("glass",), ("red", "orange", "yellow", "purple", "brown", "green")),
    Kind("vase", (
        (round_part(solids.barrel(0.5), (0, 0, 0), 0.14, 0.19),
         round_part(solids.taper(0.7, 1.0), (0, 0, 0.185), 0.08, 0.06).hollow(0.006),
         *(rod((x, y, 0.2), (0.006, 0.006, 0.2), "leaf", tilt=(-y * 300, x * 300, 0))
           for x, y in ((0.03, 0.0), (-0.02, 0.02), (-0.01, -0.025))),
         *(ball((x, y, 0.37), (0.06, 0.06, 0.05), "accent")
           for x, y in ((0.06, 0.0), (-0.045, 0.04), (-0.02, -0.055)))),
        (round_part(solids.taper(0.6, 1.0), (0, 0, 0), 0.13, 0.24).hollow(0.008),),
    ), ("ceramic", "glass"), stretch=0.05),
    Kind("teapot", (
        (round_part(solids.barrel(0.7), (0, 0, 0), 0.15, 0.11), round_part(solids.DOME, (0, 0, 0.108), 0.1, 0.02),
         ball((0, 0, 0.124), (0.022, 0.022, 0.022), "accent"), _handle(0.068, 0.025, 0.05, 0.07, 0.011),
         rod((-0.095, 0, 0.035), (0.026, 0.026, 0.09), tilt=(0, -42, 0))),
    ), ("ceramic",), BRIGHT),
    Kind("kettle", (
        (round_part(solids.taper(1.0, 0.72), (0, 0, 0.015), 0.17, 0.19), rod((0, 0, 0), (0.175, 0.175, 0.018), "black"),
         round_part(solids.DOME, (0, 0, 0.203), 0.115, 0.02, "black"), _handle(0.06, 0.06, 0.06, 0.13, 0.016, "black"),
         box((-0.085, 0, 0.15), (0.045, 0.035, 0.045), tilt=(0, -35, 0))),
    ), ("metal", "plastic"), ("grey", "white", "red", "black", "teal")),
    Kind("pot", (
        (round_part(solids.CYLINDER, (0, 0, 0), 0.22, 0.13).hollow(0.006),
         *(box((s * 0.125, 0, 0.09), (0.04, 0.07, 0.018), "black").tube(0.01) for s in (-1, 1))),
    ), ("metal", "ceramic"), ("grey", "red", "blue", "orange", "black")),
    Kind("pan", (
        (round_part(solids.taper(0.85, 1.0), (0, 0, 0), 0.26, 0.045).hollow(0.006),
         box((0.21, 0, 0.026), (0.18, 0.026, 0.016), "black")),
    ), ("metal",), ("black", "grey", "red", "teal"), stretch=0.04),
    Kind("candle", (
        (rod((0, 0, 0.012), (0.06, 0.06, 0.1)), rod((0, 0, 0.11), (0.004, 0.004, 0.014), "black"),
         ball((0, 0, 0.118), (0.014, 0.014, 0.032), "flame"), round_part(solids.BOWL, (0, 0, 0), 0.1, 0.016, "steel")),
    ), ("natural",), ("white", "beige", "red", "purple", "green")),
    Kind("table lamp", (
        (round_part(solids.barrel(0.55), (0, 0, 0), 0.14, 0.2), rod((0, 0, 0.2), (0.015, 0.015, 0.1), "steel"),
         round_part(solids.taper(1.0, 0.6), (0, 0, 0.26), 0.28, 0.18, "shade").tube(0.006)),
        (round_part(solids.CYLINDER, (0, 0, 0), 0.15, 0.02), rod((0, 0.04, 0.02), (0.016, 0.016, 0.3)),
         round_part(solids.DOME, (0, -0.03, 0.3), 0.2, 0.1).hollow(0.006, -0.03),
         ball((0, -0.03, 0.29), (0.07, 0.07, 0.07), "flame")),
    ), ("ceramic", "metal"), stretch=0.04),
    Kind("laptop", (
        (box((0, 0, 0), (0.33, 0.23, 0.016)), box((0, 0.02, 0.012), (0.29, 0.12, 0.006), "black"),
         box((0, -0.075, 0.012), (0.1, 0.06, 0.0055), "accent"),
         box((0, 0.145, 0.005), (0.33, 0.01, 0.22), tilt=(-18, 0, 0)),
         box((0, 0.1387, 0.01), (0.31, 0.004, 0.2), "screen", tilt=(-18, 0, 0))),
    ), ("metal", "plastic"), ("grey", "black", "white", "blue")),
    Kind("monitor", (
        (box((0, 0, 0), (0.22, 0.16, 0.012)), box((0, 0.04, 0.01), (0.05, 0.02, 0.16)),
         box((0, 0.02, 0.1), (0.54, 0.025, 0.33)), box((0, 0.006, 0.115), (0.52, 0.01, 0.3), "screen")),
    ), ("plastic", "metal"), ("black", "grey", "white")),
    Kind("phone", (
        (box((0, 0, 0), (0.075, 0.155, 0.009)), box((0, 0, 0.0085), (0.069, 0.145, 0.001), "screen"),
         rod((0, 0.062, 0.0), (0.01, 0.01, 0.0101), "steel")),
    ), ("metal", "plastic"), BRIGHT),
    Kind("remote", (
        (box((0, 0, 0), (0.046, 0.17, 0.02)), rod((0, 0.055, 0.017), (0.014, 0.014, 0.006), "accent"),
         *(box((x, y, 0.017), (0.009, 0.012, 0.005), "white") for x in (-0.012, 0.012) for y in (-0.05, -0.02, 0.01))),
    ), ("plastic",), ("black", "grey", "white")),
    Kind("clock", (
        (box((0, 0, 0), (0.13, 0.045, 0.12)), rod((0, -0.022, 0.015), (0.09, 0.008, 0.09), "white", "y"),
         box((0, -0.027, 0.058), (0.006, 0.004, 0.03), "black"),
         box((0.012, -0.027, 0.056), (0.026, 0.004, 0.006), "black")),
    ), ("plastic", "wooden"), BRIGHT),
    Kind("box", (
        (box((0, 0, 0), (0.2, 0.14, 0.09)), box((0, 0, 0.07), (0.206, 0.146, 0.026), "accent")),
        (box((0, 0, 0), (0.13, 0.13, 0.12)),
         *(box((0, 0, 0), s, "accent") for s in ((0.02, 0.132, 0.122), (0.132, 0.02, 0.122)))),
    ), ("paper", "plastic"), scale=(0.7, 1.3), stretch=0.2),
    Kind("cereal box", (
        (box((0, 0, 0), (0.19, 0.06, 0.28)), box((0, 0, 0.18), (0.191, 0.061, 0.06), "white"),
         rod((0, -0.028, 0.05), (0.11, 0.008, 0.11), "accent", "y")),
    ), ("paper",), BRIGHT, lies=0.15),
    Kind("carton", (
        (box((0, 0, 0), (0.075, 0.075, 0.18)), box((0, 0, 0.155), (0.053, 0.0745, 0.053), tilt=(0, 45, 0)),
         box((0, 0, 0.2), (0.008, 0.075, 0.035), "white"), box((0, 0, 0.05), (0.076, 0.076, 0.07), "accent")),
    ), ("paper",), BRIGHT, lies=0.1),
    Kind("ball", (
        (ball((0, 0, 0), (0.1, 0.1, 0.1)),),
        (ball((0, 0, 0), (0.12, 0.12, 0.12)), rod((0, 0, 0.053), (0.121, 0.121, 0.014), "accent")),
    ), ("plastic",), BRIGHT, scale=(0.6, 1.4), stretch=0.0),
    Kind("apple", (
        (ball((0, 0, 0), (0.08, 0.08, 0.072)), rod((0, 0, 0.066), (0.005, 0.005, 0.02), "wood", tilt=(8, 10, 0)),
         ball((0.012, 0, 0.076), (0.026, 0.014, 0.008), "leaf", (0, -25, 0))),
    ), ("natural",), _FRUIT, stretch=0.04),
    Kind("orange", (
        (ball((0, 0, 0), (0.078, 0.078, 0.074)), rod((0, 0, 0.071), (0.01, 0.01, 0.004), "leaf")),
    ), ("natural",), ("orange",), stretch=0.03),
    Kind("banana", (
        (ball((0, 0, 0), (0.1, 0.036, 0.036), "skin"),
         ball((-0.06, 0.017, 0.002), (0.09, 0.033, 0.032), "skin", (0, 0, -28)),
         ball((0.06, 0.017, 0.002), (0.09, 0.033, 0.032), "skin", (0, 0, 28)),
         box((0.1, 0.038, 0.012), (0.03, 0.01, 0.01), "soil", tilt=(0, 0, 35))),
    ), ("natural",), ("yellow",), stretch=0.04),
    Kind("loaf", (
        (pillow((0, 0, 0), (0.24, 0.1, 0.09), "crust"),
         *(box((x, 0, 0.07), (0.012, 0.06, 0.0185), "skin", tilt=(0, 0, 20)) for x in (-0.06, 0.0, 0.06))),
    ), ("natural",), ("brown",)),
    Kind("toy car", (
        (box((0, 0, 0.014), (0.16, 0.066, 0.03)), pillow((-0.01, 0, 0.038), (0.09, 0.058, 0.038), "accent"), *_WHEELS),
    ), ("plastic",), BRIGHT),
    Kind("hammer", (
        (rod((0, -0.02, 0.006), (0.026, 0.24, 0.024), "wood", "y"), box((0, 0.1, 0), (0.1, 0.03, 0.034), "steel"),
         rod((0.055, 0.1, 0), (0.02, 0.036, 0.036), "steel", "x")),
    ), ("metal",), ("grey",)),
    Kind("potted plant", (
        (round_part(solids.taper(0.74, 1.0), (0, 0, 0), 0.11, 0.1).hollow(0.006),
         rod((0, 0, 0.01), (0.09, 0.09, 0.075), "soil"),
         *(ball((x, y, 0.08), (0.05, 0.05, h), "leaf" if h > 0.12 else "young leaf", (-y * 500, x * 500, 0))
           for x, y, h in ((0, 0, 0.16), (0.035, 0.01, 0.12), (-0.035, 0.01, 0.13), (0.005, 0.036, 0.12),
                           (0, -0.036, 0.11)))),
    ), ("ceramic",), BRIGHT, coloured=False),
    Kind("cushion", (
        (Part(solids.BALL, (0, 0, 0), (0.3, 0.3, 0.12)),),
        (pillow((0, 0, 0), (0.3, 0.3, 0.1)),),
    ), ("fabric",), CLOTH),
    Kind("book", (_book(0.15, 0.22, 0.028), _book(0.2, 0.27, 0.04)), ("paper",), place="flat", top=Top(0.85, 0.85)),
    Kind("tray", (
        (box((0, 0, 0), (0.46, 0.32, 0.04)).hollow(0.012, 0.008),),
        (box((0, 0, 0), (0.4, 0.3, 0.05)).hollow(0.01),
         *(box((s * 0.21, 0, 0.026), (0.025, 0.12, 0.02), "accent").tube(0.008) for s in (-1, 1))),
        (round_part(solids.taper(0.96, 1.0), (0, 0, 0), 0.4, 0.035).hollow(0.01, 0.007),),
    ), ("wooden", "metal", "plastic"), place="flat", top=Top(0.64, 0.64, 0.202), stretch=0.06),
    Kind("plate", (
        (round_part(solids.taper(0.72, 1.0), (0, 0, 0), 0.26, 0.022).hollow(0.006, 0.0055),),
        (round_part(solids.taper(0.62, 1.0), (0, 0, 0), 0.22, 0.028).hollow(0.004, 0.007),
         rod((0, 0, 0.0005), (0.12, 0.12, 0.0066), "accent")),
    ), ("ceramic",), BRIGHT, "flat", stretch=0.0, top=Top(0.4, 0.4, 0.255)),
    Kind("cutting board", (
        (box((0, 0, 0), (0.38, 0.25, 0.02)), box((0.22, 0, 0), (0.08, 0.06, 0.02))),
    ), ("wooden",), ("brown", "beige"), "flat", top=Top(0.7, 0.9)),
    Kind("placemat", ((box((0, 0, 0), (0.44, 0.32, 0.005)),),), ("fabric",), CLOTH, "flat", top=Top(0.95, 0.95)),
)
