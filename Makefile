.PHONY: test check clean

# Format, lint, docs and every test.
test: check
	cargo test --release --locked

check:
	cargo fmt --check
	cargo clippy --release --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --no-deps

clean:
	cargo clean
