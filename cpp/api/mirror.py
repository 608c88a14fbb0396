"""Writes rdmacoll/_abi/mirror.py, the C interface in ctypes, from rdmacoll_c.h: python cpp/api/mirror.py"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HEADER = Path(__file__).with_name("rdmacoll_c.h")
MIRROR = Path(__file__).resolve().parents[2] / "rdmacoll" / "_abi" / "mirror.py"

# Functions that Python calls often. They take plain addresses, since ctypes converts numbers fastest.
BY_ADDRESS = {
    "engine.memory_lend",
    "operation.call",
    "operation.call_for_result",
    "operation.run",
    "operation.submit",
    "operation.submit_and_drive",
    "operation.submit_group",
    "operation.wait",
    "prepared.prepare",
    "ps.transfer_rows",
}
# Functions without argument types. ctypes passes a `byref` to them without a conversion, which is cheaper.
UNTYPED = {"prepared.run": "CFUNCTYPE", "prepared.run_locked": "PYFUNCTYPE"}
# Structs that Python fills with one `pack_into`, which is much cheaper than ctypes fields.
PACKED = ("rc_request", "rc_tensor")
# Structs that only the library of TensorFlow ops uses.
OPS_ONLY = ("rc_ps_request", "rc_ps_tensor")

# The suffix of the structs that are tables of functions.
TABLE = "_api"
NUMBERS = {
    "int": ("ctypes.c_int", "i"),
    "int32_t": ("ctypes.c_int32", "i"),
    "uint32_t": ("ctypes.c_uint32", "I"),
    "int64_t": ("ctypes.c_int64", "q"),
    "uint64_t": ("ctypes.c_uint64", "Q"),
    "double": ("ctypes.c_double", "d"),
}
COLUMNS = 110
TOP = '''"""The C interface of librdmacoll.so in ctypes.

cpp/api/mirror.py writes this file from rdmacoll_c.h: edit the header, and run that."""

from __future__ import annotations

import ctypes
import struct

_ADDRESS = ctypes.c_void_p
_ADDRESSES = ctypes.POINTER(ctypes.c_void_p)
'''


def class_of(name: str) -> str:
    """The name of the class of a struct.

    >>> class_of("rc_ps_request")
    'PsRequest'
    """
    return "".join(part.capitalize() for part in name.removeprefix("rc_").split("_"))


def single(declared: str) -> list[str]:
    """Splits a declaration of several names into one declaration for each name.

    >>> single("double copied, reduced")
    ['double copied', 'double reduced']
    """
    declared = declared.strip()
    if "(" in declared:
        return [declared]
    first, *others = [one.strip() for one in declared.split(",")]
    return [first, *(f"{first.split()[0]} {one}" for one in others)]


class Header:
    """The parsed declarations of the header, without comments."""

    def __init__(self, text: str) -> None:
        code = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        self.hash = hashlib.sha256(re.sub(r"[ \n]+", " ", code).encode()).hexdigest()[:16]
        (self.version,) = re.findall(r"#define RC_ABI_VERSION (\d+)", code)
        code = " ".join(re.sub(r"^\s*#.*$", "", code, flags=re.MULTILINE).split())
        self.enums = re.findall(r"\benum (\w+) \{ (.*?) \};", code)
        self.structs: dict[str, list[str]] = {
            name: [one for declared in body.split(";") if declared.strip() for one in single(declared)]
            for body, name in re.findall(r"typedef struct \w+ \{ (.*?) \} (\w+);", code)
        }
        self.callbacks = set(re.findall(r"typedef [\w* ]+ \(\*(\w+)\)\(", code))

    def constants(self) -> Iterator[tuple[str, str]]:
        """Yields the constants of the enums: names without their prefix, and values."""
        for _, body in self.enums:
            for one in body.split(","):
                name, _, value = one.partition("=")
                yield name.strip().removeprefix("RC_"), value.strip()

    def names_of(self, enum: str) -> list[str]:
        """The names of an enum's constants without their prefix."""
        (body,) = [body for name, body in self.enums if name == enum]
        return [one.partition("=")[0].strip().removeprefix("RC_") for one in body.split(",")]

    def type_of(self, declared: str, *, is_plain: bool = False) -> str:
        """The ctypes type of a parameter or field. is_plain: pointers are plain addresses."""
        text = declared.replace("const", " ")
        array = re.search(r"\[(\d+)\]$", text)
        stars = text.count("*")
        base = re.match(r"\s*(?:struct )?(\w+)", text)
        assert base, declared
        name = base[1]
        if "(*" in text or name in self.callbacks:
            return "_ADDRESS"
        if array:
            stars += 1
        if stars == 0:
            return class_of(name) if name in self.structs else NUMBERS[name][0]
        if is_plain or name in PACKED or name in OPS_ONLY:
            return "_ADDRESS"
        if name in ("char", "uint8_t"):
            if stars == 1:
                return "ctypes.c_char_p" if declared.startswith("const") else "_ADDRESS"
            # `const char`: the caller's array of texts. Otherwise a returned text, whose address is kept.
            return "ctypes.POINTER(ctypes.c_char_p)" if declared.startswith("const char") else "_ADDRESSES"
        if stars == 2:
            return "_ADDRESSES"
        if name in self.structs:
            return f"ctypes.POINTER({class_of(name)})"
        if name in NUMBERS:
            return f"ctypes.POINTER({NUMBERS[name][0]})"
        return "_ADDRESS"

    def field(self, declared: str) -> tuple[str, str]:
        """The name and type of a field that is not a function."""
        array = re.search(r"(\w+)\[(\d+)\]$", declared)
        name = array[1] if array else declared.split()[-1].lstrip("*")
        if array:
            return name, f"{NUMBERS[declared.split()[0]][0]} * {array[2]}"
        return name, self.type_of(declared)

    def function(self, table: str, declared: str) -> tuple[str, str]:
        """The name and type of a function in a table. `table`: the table's struct."""
        found = re.match(r"(.*?)\(\*(\w+)\)\((.*)\)$", declared)
        assert found, declared
        result, name, parameters = found[1].strip(), found[2], found[3]
        path = f"{table.removeprefix('rc_').removesuffix(TABLE)}.{name}"
        returned = "None" if result == "void" else "_ADDRESS" if "*" in result else NUMBERS[result][0]
        if path in UNTYPED:
            return name, f"ctypes.{UNTYPED[path]}({returned})"
        types = [
            self.type_of(one.strip(), is_plain=path in BY_ADDRESS)
            for one in re.split(r",(?![^(]*\))", parameters)
            if one.strip() != "void"
        ]
        return name, f"ctypes.CFUNCTYPE({', '.join([returned, *types])})"

    def format_of(self, struct: str) -> str:
        """The format of a struct for the module `struct`."""
        codes = []
        for declared in self.structs[struct]:
            array = re.search(r"\[(\d+)\]$", declared)
            is_address = "*" in declared or declared.split()[0] in self.callbacks
            code = "P" if is_address else NUMBERS[declared.split()[-2]][1]
            codes.append(f"{array[1]}{code}" if array else code)
        return "@" + "".join(codes)


def mirror(text: str) -> str:
    """The text of the mirror of a header."""
    header = Header(text)
    lines = [TOP, f"ABI_VERSION = {header.version}", f"HEADER_HASH = 0x{header.hash.upper()}", ""]
    lines += [f"{name} = {value}" for name, value in header.constants()]
    lines += ["", "# The kinds by their names in Python.", "KINDS = {"]
    lines += [f'    "{name.lower()}": {name},' for name in header.names_of("rc_kind")]
    lines += ["}"]
    for struct in PACKED:
        fields = header.structs[struct]
        names = " ".join(re.sub(r"\[\d+\]", "", one).split()[-1].lstrip("*") for one in fields)
        lines += ["", f"# {struct}: {names}"] if len(names) < 80 else ["", f"# {struct}:", *wrapped(names)]
        lines.append(f'{struct.removeprefix("rc_").upper()} = struct.Struct("{header.format_of(struct)}")')
    for struct, fields in header.structs.items():
        if struct in PACKED or struct in OPS_ONLY:
            continue
        lines += ["", "", f"class {class_of(struct)}(ctypes.Structure):", f'    """{struct}."""', ""]
        lines.append("    _fields_ = [")
        for declared in fields:
            is_function = struct.endswith(TABLE) and "(*" in declared
            if "(*" in declared and not is_function:
                name, kind = re.findall(r"\(\*(\w+)\)", declared)[0], "_ADDRESS"
            else:
                name, kind = header.function(struct, declared) if is_function else header.field(declared)
            lines += entry(name, kind)
        lines.append("    ]")
    return "\n".join(lines) + "\n"


def entry(name: str, kind: str) -> list[str]:
    """The lines of a field, formatted like ruff does."""
    line = f'        ("{name}", {kind}),'
    if len(line) <= COLUMNS:
        return [line]
    function, _, parameters = kind.removesuffix(")").partition("(")
    types = re.split(r", (?![^(]*\))", parameters)
    return [
        "        (",
        f'            "{name}",',
        f"            {function}(",
        *(f"                {one}," for one in types),
        "            ),",
        "        ),",
    ]


def wrapped(names: str) -> list[str]:
    """Comment lines of at most 100 columns."""
    lines = ["#  "]
    for name in names.split():
        if len(lines[-1]) + len(name) > 99:
            lines.append("#  ")
        lines[-1] += f" {name}"
    return lines


if __name__ == "__main__":
    text = mirror(HEADER.read_text())
    if "--check" in sys.argv:
        sys.exit(0 if MIRROR.read_text() == text else f"{MIRROR} is stale: python {__file__}")
    MIRROR.write_text(text)
