"""Hostile data: arrays, archives, images, lists, special files, names of files."""

import io
import os
import random
import shutil
import socket
import struct
import warnings
import zipfile
import zlib

import numpy as np
from harness import EVIL, IMAGES, MODEL, Trial, flipped
from onnx import numpy_helper
from PIL import Image


def npy(header, data=b"", version=1):
    text = header.encode("latin-1", "replace") + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def npy_files(rng, folder):
    path = folder / "d.npy"
    good = (folder.parent / "good.npy").read_bytes()
    shape = rng.choice(["(1, 3, 32, 32)", "(99999999999, 3, 32, 32)", "(-1, 3, 32, 32)", "(1, 3, 32, 32, )", "(1 << 3,)", "()", "(3, 32)"])
    level = rng.randrange(5, 30)
    nested = "[" * level + "('a', '<f4')" + "]" * level
    path.write_bytes(rng.choice([
        lambda: flipped(rng, good[:128], 2) + good[128:], lambda: good[: rng.randrange(len(good))],
        lambda: npy("{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % shape, good[128:]),
        lambda: npy("{'descr': %s, 'fortran_order': False, 'shape': (1, 3, 32, 32), }" % nested, good[128:]),
        lambda: npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"c" * 99),
        lambda: b"\x93NUMPY\x02\x00" + struct.pack("<I", rng.choice([1 << 31, (1 << 32) - 1])) + good[10:200],
        lambda: npy("{'descr': '%s', 'fortran_order': False, 'shape': (1, 3, 32, 32), }" % EVIL.replace("\n", " "), good[128:]),
        lambda: b"", lambda: os.urandom(200),
    ])())
    return path, {}


def archives(rng, folder):
    path = folder / "d.npz"
    array = np.random.default_rng(1).normal(0, 1, (4, 3, 32, 32)).astype(np.float32)
    pack = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    text = io.BytesIO()
    np.save(text, array)
    with zipfile.ZipFile(path, "w", pack) as archive:
        archive.writestr("input.npy", text.getvalue())
    data = bytearray(path.read_bytes())
    way = rng.randrange(4)
    if way < 2:
        # Inside of the values: only the checksum tells.
        at = rng.randrange(400, len(data) - 400)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        return path, {"must_fail": True}
    if way == 2:
        path.write_bytes(flipped(rng, bytes(data[-150:]), 4) if rng.random() < .1 else bytes(data[:-150]) + flipped(rng, bytes(data[-150:]), 4))
        return path, {}
    shutil.copy(bomb(folder.parent), path)
    return path, {"must_fail": True}


def bomb(folder):
    """An archive of 5 GiB of zeros, in some megabytes."""
    path = folder / "bomb.npz"
    if not path.exists():
        n = (5 << 30) // (3 * 32 * 32 * 4)
        header = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 3, 32, 32), }" % n)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("input.npy", "w", force_zip64=True) as member:
            member.write(header)
            part = bytes(1 << 24)
            for _ in range(n * 3 * 32 * 32 * 4 // len(part)):
                member.write(part)
            member.write(bytes(n * 3 * 32 * 32 * 4 % len(part)))
    return path


def images(rng, folder):
    kind = rng.choice(["png", "jpeg", "bmp", "gif", "webp", "tiff"])
    path = folder / f"d.{kind}"
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(2).integers(0, 255, (32, 32, 3), np.uint8)).save(stream, kind)
    data = stream.getvalue()
    way = rng.randrange(3)
    if way == 0:
        path.write_bytes(flipped(rng, data, 3))
    elif way == 1:
        path.write_bytes(data[: rng.randrange(len(data))])
    else:
        size = rng.choice([(1 << 31) - 1, 70_000, 0])
        chunk = b"IHDR" + struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
        path = folder / "d.png"
        path.write_bytes(png + data[33:])
    return path, {}


def specials(rng, folder):
    name = rng.choice(["d.npy", "d.png", "d.npz", "d.pb", "d.txt", "d.csv"])
    path = folder / name
    if rng.random() < .5:
        os.mkfifo(path)
    else:
        os.symlink(rng.choice(["/dev/zero", "/dev/random", "/dev/full", "/dev/tty"]), path)
    return path, {"must_fail": True}


def lists(rng, folder):
    path = folder / rng.choice(["d.txt", "d.csv"])
    lines = ["file"] if path.suffix == ".csv" else []
    lines += [rng.choice([EVIL, "nothing.png", str(folder.parent / "good.npy"), "x" * 100_000, "../" * 999, "\x00"])]
    path.write_text("\n".join(lines))
    return path, {}


def pb_files(rng, folder):
    path = folder / "input_0.pb"
    tensor = numpy_helper.from_array(np.ones((1, 3, 32, 32), np.float32), rng.choice(["input", EVIL]))
    if rng.random() < .5:
        tensor.dims[rng.randrange(4)] = rng.choice([-1, 1 << 40, 7])
    data = tensor.SerializeToString()
    path.write_bytes(rng.choice([data, flipped(rng, data, 5), data[: len(data) // 2]]))
    return path, {}


def arrays(rng, folder):
    """Arrays of every type, order and shape; only numbers of the right shape are taken."""
    array = np.random.default_rng(3).normal(0, 1, (1, 3, 32, 32)).astype(np.float32)
    fitting = [np.asfortranarray(array), array.astype(">f4"), array.astype(np.float64), array.astype(np.float16), array[0],
               array.repeat(5, 0)]
    others = [array.astype(np.complex64), array > 0, np.full_like(array, np.nan), np.full_like(array, np.inf), array[:, :, :31],
              np.array([{}], object), np.zeros((1, 3, 32, 32), [("a", "f4"), ("b", "i2")]), array[:0], array[0, 0, 0, 0],
              array.astype("U4"), array.astype("S3"), array.astype(">i2"), array.astype(np.longdouble),
              np.array(["2020"], "M8[D]"), array[..., None], np.zeros((1, 3, 0, 32), np.float32), np.full_like(array, 3e38),
              np.full_like(array, 1e-45), array.astype(np.uint64), array.astype(">u4"), array.astype("?")]
    array = rng.choice([*fitting, *others])
    name = rng.choice(["d.npy", "d.npz"])
    if name == "d.npy":
        with open(folder / name, "wb") as file:
            np.lib.format.write_array(file, array, version=rng.choice([None, (1, 0), (2, 0), (3, 0)]), allow_pickle=True)
    else:
        np.savez(folder / name, **{rng.choice(["input", "input", "x", "INPUT"]): array})
    return folder / name, {}


def members(rng, folder):
    """Archives with odd members: twice the same, of other names, none, wrong sizes."""
    path = folder / "d.npz"
    stream = io.BytesIO()
    np.save(stream, np.ones((1, 3, 32, 32), np.float32))
    names = rng.choice([["input.npy", "input.npy"], ["input.npy", "../../evil.npy"], ["/input.npy"], ["input"], [EVIL + ".npy"],
                        [], ["input.npy", "input.npy/"], ["INPUT.npy"], ["a/input.npy"], ["input.npy"] * 500, ["x" * 60_000 + ".npy"]])
    with zipfile.ZipFile(path, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])) as archive:
        for name in names:
            warnings.simplefilter("ignore", UserWarning)
            archive.writestr(name, stream.getvalue())
    if rng.random() < .3:
        # Sizes of the directory that are not those of the members.
        data = bytearray(path.read_bytes())
        at = data.rfind(b"PK\x01\x02")
        if at > 0:
            data[at + 20:at + 28] = struct.pack("<II", *rng.choice([(0xffffffff, 0xffffffff), (0, 0), (7, 1 << 30)]))
            path.write_bytes(data)
    return path, {}


def kinds_of_images(rng, folder):
    """Every mode and size of images in every format, also under other names, with several frames, or rotated."""
    modes = ["RGB", "L", "CMYK", "P", "RGBA", "1", "I;16", "LA", "YCbCr", "F"]
    size = rng.choice([(32, 32), (1, 1), (32, 1), (500, 3), (20_000, 1), (1, 20_000), (1500, 1500)])
    image = Image.new(rng.choice(modes), size, 1)
    kind = rng.choice(["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "ICO", "TGA", "PCX"])
    path = folder / ("d." + rng.choice(["png", "jpg", "bmp", "webp", "gif", "tiff", "ppm", "PNG", kind.lower()]))
    more = {"save_all": True, "append_images": [image.copy() for _ in range(4)]} if kind in ("GIF", "TIFF") and rng.random() < .5 else {}
    try:
        if kind == "JPEG" and rng.random() < .5:
            exif = Image.Exif()
            exif[0x0112] = rng.choice([3, 6, 8, 99])
            more["exif"] = exif.tobytes()
        image.save(path, kind, **more)
    except (OSError, KeyError, ValueError):
        Image.new("RGB", (32, 32), (1, 2, 3)).save(path, "PNG")
    return path, {}


def declared_images(rng, folder):
    """Headers that declare more pixels than there are bytes."""
    width, height = rng.choice([(65_500, 65_500), (1 << 30, 1), (30_000, 30_000), (0, 5), (65_535, 2)])
    kind = rng.choice(["bmp", "gif", "ppm", "tiff", "webp", "png", "tga"])
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    small = [min(side, 65_535) for side in (width, height)]
    data = {
        "bmp": b"BM" + struct.pack("<IIIIiiHHIIiiII", 200, 0, 54, 40, width, -height, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(100),
        "gif": b"GIF89a" + struct.pack("<HHBBB", *small, 0x80, 0, 0) + bytes(6) + b"," + struct.pack("<HHHHB", 0, 0, *small, 0) + b"\x02\x02\x4c\x01\x00;",
        "ppm": b"P6\n%d %d\n255\n" % (width, height) + bytes(300),
        "tiff": b"II*\x00\x08\x00\x00\x00\x02\x00" + struct.pack("<HHIIHHII", 256, 4, 1, width, 257, 4, 1, height) + bytes(4),
        "webp": b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff" * 6,
        "png": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 6, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(bytes(1_000))) + chunk(b"IEND", b""),
        "tga": struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, *small, 24, 0) + bytes(30),
    }[kind]
    path = folder / f"d.{kind}"
    path.write_bytes(data)
    return path, {"must_fail": kind != "ppm"}


NAMES = [b"a\nerror: FORGED.png", b"\xff\xfe.png", b"\x1b[31m.png", "\u202egnp.png".encode(), b"a\rb.png", b"  .png", b"-b.png",
         b"*.png", b"[x].png", b"`id`.png", b"x" * 250 + b".png", b"{a,b}.png", b"a,b.png", b'"q".png', b"%s.png", b"a\tb.png", b"?.png",
         "\u00e9.png".encode(), "e\u0301.png".encode(), b"\x85.png"]


def names_of_files(rng, folder):
    """Names that break terminals, patterns or UTF-8: of a readable image it is taken."""
    name = rng.choice(NAMES)
    inside = folder / "in"
    inside.mkdir()
    path = os.path.join(os.fsencode(inside), name)
    readable = rng.random() < .6
    with open(path, "wb") as file:
        file.write(sorted(IMAGES.iterdir())[0].read_bytes() if readable else b"no image")
    if rng.random() < .3:
        return path, {"must_fail": not readable}
    return inside, {"must_fail": not readable, "must_pass": readable}


def folders(rng, folder):
    """Folders with loops, sockets, devices, many links, depth, or nothing."""
    inside = folder / "in"
    inside.mkdir()
    way = rng.randrange(8)
    image = sorted(IMAGES.iterdir())[0]
    if way == 0:
        os.symlink(".", inside / "self")
        shutil.copy(image, inside / "a.png")
    elif way == 1:
        os.symlink("loop", inside / "loop")
        return inside / rng.choice(["loop", ""]), {"must_fail": True}
    elif way == 2:
        with socket.socket(socket.AF_UNIX) as end:
            here = os.getcwd()
            os.chdir(inside)
            end.bind("s.png")
            os.chdir(here)
        return inside / rng.choice(["s.png", ""]), {"must_fail": True}
    elif way == 3:
        for k in range(rng.choice([100, 3000])):
            os.symlink(image, inside / f"{k}.png")
    elif way == 4:
        deep = inside
        for _ in range(120):
            deep = deep / "d"
        deep.mkdir(parents=True)
        shutil.copy(image, deep / "a.png")
    elif way == 5:
        os.symlink("nowhere", inside / "a.png")
    elif way == 6:
        for name in ("a.svg", "README.txt", "Thumbs.db", ".DS_Store"):
            (inside / name).write_text("x")
        shutil.copy(image, inside / "a.png")
    return inside, {}


def addresses(rng, folder):
    """Values of --data that are no paths of samples."""
    return rng.choice(["", "/", "/proc/self", "/dev/null", "/dev/zero", "/proc/self/mem", "~", "*", "[", "**/**/**", "-", ".", "a,b",
                       "/nonexistent/x.npy", "/etc/passwd", "/etc/shadow", "http://x/y.png", "\n", "x" * 5000, EVIL.replace("\0", "")]), {"must_fail": True}


def tables_of_samples(rng, folder):
    """CSV files: columns, quotes, separators, line ends, marks of order, widths."""
    path = folder / "d.csv"
    images = [str(image) for image in sorted(IMAGES.iterdir())[:4]]
    lines = ["file,class_index", *(f"{image},0" for image in images)]
    text = "\n".join(lines)
    path.write_bytes(rng.choice([
        lambda: ("\ufeff" + text).encode(), lambda: "\r\n".join(lines).encode(), lambda: "\r".join(lines).encode(),
        lambda: text.replace(",", ";").encode(), lambda: text.replace(",", "\t").encode(), lambda: text.encode("utf-16"),
        lambda: text.replace("file", "path").encode(), lambda: b"\n\n\n", lambda: b"file,class_index\n\"unclosed",
        lambda: ("file" + ",x" * 1_000_000 + "\n" + images[0]).encode(), lambda: b"file,file\n" + images[0].encode(),
        lambda: ("file\n" + "x" * 3_000_000).encode(), lambda: b"file\n" + bytes(100), lambda: b"file\n/dev/zero\n", lambda: b"file\n.\n",
        lambda: b"file\n\xff\xfe\n", lambda: ("file,class_index\n" + EVIL.replace("\n", " ") + ",1\n").encode(),
        lambda: b'"file","class_index"\n' + b"".join(b'"%s","1"\n' % image.encode() for image in images),
        lambda: b"file,class_index\n" + b"".join(b"%s,1,5\n" % image.encode() for image in images),
    ])())
    return path, {}


DATA = [npy_files, archives, images, specials, lists, pb_files, arrays, members, kinds_of_images, declared_images,
        names_of_files, folders, addresses, tables_of_samples]


def data_trial(kind, rng, folder):
    path, known = kind(rng, folder)
    out = folder / "out" / "q.onnx"
    out.parent.mkdir()
    options = ["--data", path, "--preprocess", "half", "--threads", rng.choice(["2", "100000"])]
    if rng.random() < .3:
        options.append("--json")
    command = rng.choice(["calibrate"] * 5 + ["eval", "doctor", "compare", "statistics"])
    if command == "eval":
        return Trial([command, MODEL, *options], **known)
    if command == "compare":
        return Trial([command, MODEL, folder.parent / "good.onnx", *options], **known)
    if command == "doctor":
        # It reports data that cannot be read as a finding.
        return Trial([command, MODEL, *options[:4], *options[6:]], **{**known, "must_fail": False, "must_pass": False})
    options += ["--effort", "0"]
    if rng.random() < .2:
        known = {**known, "must_fail": False}
        options.append("--skip-bad-data")
    if command == "statistics":
        statistics = folder / "s.mqqs"
        return Trial(["calibrate", MODEL, "-b", "onnxruntime", *options, "--save-stats", statistics, "-o", out], out,
                     leaves=[statistics], **known)
    return Trial(["calibrate", MODEL, "-b", "onnxruntime", *options, "-o", out], out, **known)
