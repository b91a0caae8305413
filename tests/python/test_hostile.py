"""A share of the trials of `tests/hostile`, and the signatures that models are held against."""

import sys

import onnx
from support import MQQ, ROOT

sys.path.insert(0, str(ROOT / "tests" / "hostile"))
import trials  # noqa: E402


def test_hostile_files_and_faults_end_in_errors():
    counts, found = trials.trials(MQQ, 160, seed=7)
    assert sum(counts.values()) >= 150 and len({name for name, _ in counts}) == 7
    assert {label: dict(of) for label, of in found.items() if of["trials with one"]} == {}


def test_signatures_of_operators_are_those_of_onnx():
    def line(schema):
        number = lambda n: "*" if n >= 2**31 - 1 else str(n)
        sizes = [schema.min_input, schema.max_input, schema.min_output, schema.max_output]
        attributes = [f"{name}:{it.type.value}{'!' * it.required}" for name, it in sorted(schema.attributes.items())]
        words = [schema.name, str(schema.since_version), *map(number, sizes), *["deprecated"] * schema.deprecated]
        return " ".join(words + attributes)

    lines = (ROOT / "src" / "onnx" / "operators.txt").read_text().splitlines()
    found = [text for text in lines if not text.startswith("#")]
    newest = onnx.defs.onnx_opset_version()
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""]
    schemas.sort(key=lambda schema: (schema.name, schema.since_version))
    expected = [line(schema) for schema in schemas]
    # An older or newer package knows other versions.
    assert [text for text in found if int(text.split()[1]) <= newest] == [text for text in expected if int(text.split()[1]) <= 28]
