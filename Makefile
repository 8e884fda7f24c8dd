# `make demo` and `make test` do all the set-up they need, and say what they do.

WAVE = target/release/wave

.PHONY: help demo test lint fuzz bench soak build setup
.DEFAULT_GOAL := help

help:
	@echo "make demo    RocksDB under an agent in another process: a table and a report, in a minute"
	@echo "make test    every test, also those in a virtual machine that has sched_ext"
	@echo "make lint    formatting, clippy, documentation, the project's own rules"
	@echo "make fuzz    2000 faulty histories of the real code, simulated and checked"
	@echo "make bench   the benches: ratios against named peers, in this run"
	@echo "make soak    long runs: the ladder, many crashes, many seeds, fuzzing"

setup:
	@sh xtask/setup.sh

build: setup
	@echo "demo: building the optimized binary (a few minutes the first time)"
	cargo build --release --locked --package wave

demo: build
	$(WAVE) run scenarios/rocksdb-fifo.toml

test:
	@sh xtask/setup.sh test
	cargo test --workspace --locked
	cargo test --manifest-path docs/guide/my-policy/Cargo.toml --locked --target-dir target/guide
	cargo xtask vm test

lint: setup
	cargo fmt --all --check
	cargo fmt --manifest-path docs/guide/my-policy/Cargo.toml --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items
	cargo metadata --format-version 1 --manifest-path docs/guide/my-policy/Cargo.toml --locked >/dev/null
	cargo xtask tidy

fuzz: build
	$(WAVE) fuzz --seeds 2000

bench: build
	$(WAVE) bench queue
	$(WAVE) bench agent
	$(WAVE) bench switch
	$(WAVE) bench preempt
	$(WAVE) bench sim
	$(WAVE) bench sol
	$(WAVE) bench payload
	$(WAVE) bench rpc

soak: build
	$(WAVE) run scenarios/ladder.toml
	$(WAVE) run scenarios/agent-crash.toml
	$(WAVE) run scenarios/enclaves.toml
	$(WAVE) run scenarios/rocksdb-sol.toml
	$(WAVE) run scenarios/rpc-rocksdb.toml
	$(WAVE) fuzz --seeds 50000
	WAVE_SECONDS=300 cargo test --release --locked --package wave --test memory -- --nocapture nothing_is_lost
	WAVE_SEEDS=200000 PROPTEST_CASES=20000 cargo test --workspace --release --locked
