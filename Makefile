# `make demo` and `make test` do all the set-up they need, and say what they do.

WAVE = target/release/wave

.PHONY: help demo test lint fit rows reproduced fuzz bench soak site release build setup
.DEFAULT_GOAL := help

help:
	@echo "make demo    RocksDB under an agent in another process: a table and a report, a minute after the build"
	@echo "make build   target/release/wave, and the preloaded library for wave tcp run"
	@echo "make test    every test, also those in a virtual machine that has sched_ext"
	@echo "make lint    formatting, clippy, documentation, the project's own rules"
	@echo "make fit     the model of the paper's machine, derived again from what the paper prints"
	@echo "make rows    the quick rows of wave reproduce and one group of the others, compared with docs/reproduced.csv"
	@echo "make reproduced  docs/reproduced.csv, computed again: 40 minutes of CPU time"
	@echo "make fuzz    2000 faulty histories of the real code, simulated and checked"
	@echo "make bench   the benches: ratios against named peers, in this run"
	@echo "make site    the documentation as a site: target/site/html"
	@echo "make release the binary archive of this version: target/release-archives"
	@echo "make soak    long runs: the ladder, many crashes, many seeds, fuzzing"

setup:
	@sh xtask/setup.sh

build: setup
	@echo "building $(WAVE), optimized across crates: about ten minutes of CPU time the first time"
	cargo build --release --locked --package wave --package wave-preload

# Built in two thirds of the time of `make build`: without optimization across crates, and without the library of `wave tcp run`.
demo: WAVE = target/demo/wave
demo: setup
	@echo "building $(WAVE): about seven minutes of CPU time the first time"
	cargo build --profile demo --locked --package wave
	@$(WAVE) run scenarios/rocksdb-fifo.toml
	@echo; echo "demo: beside it, the paper's ladder of optimizations, simulated in virtual time:"; echo
	@$(WAVE) run scenarios/ladder.toml --host sim --out out/simulated
	@echo "demo: the binary is $(WAVE); \`make build\` builds the fully optimized one"

# Tests that this machine cannot run are noted in a file, which is printed at the end.
test: export WAVE_LEFT_OUT = $(CURDIR)/target/left-out.txt
test:
	@sh xtask/setup.sh test
	@mkdir -p target && : > $(WAVE_LEFT_OUT)
	cargo xtask test
	@sh xtask/left-out.sh

lint: setup
	cargo fmt --all --check
	cargo fmt --manifest-path docs/guide/my-policy/Cargo.toml --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items
	cargo metadata --format-version 1 --manifest-path docs/guide/my-policy/Cargo.toml --locked >/dev/null
	cargo xtask tidy

fit: build
	$(WAVE) fit --write

# Groups of rows that take minutes. Each commit checks one of them, chosen by its hash, so that many commits together check all.
LONG_GROUPS = fig4b fig6a fig6b upi mtg2 mtg3 mtg4 mtg5 mtg6 sol
LONG_GROUP = $(word $(shell expr $$(printf %d 0x$$(git rev-parse --short=7 HEAD)) % $(words $(LONG_GROUPS)) + 1),$(LONG_GROUPS))

# Under one seed. `make soak` compares all rows.
rows: build
	$(WAVE) reproduce table2 table3 ladder fig4a fig5a fig5b $(LONG_GROUP) --seeds 1 --check docs/reproduced.csv --out out/rows

reproduced: export WAVE_VERSION = $(shell git describe --always --dirty)
reproduced: build
	$(WAVE) reproduce all --out out/reproduce
	cp out/reproduce/rows.csv docs/reproduced.csv

fuzz: build
	$(WAVE) fuzz --seeds 2000

bench:
	@sh xtask/setup.sh bench
	cargo build --release --locked --package wave --package wave-bench --package wave-bench-tcp --package wave-preload
	$(WAVE) bench queue
	$(WAVE) bench agent
	$(WAVE) bench switch
	$(WAVE) bench preempt
	$(WAVE) bench sim
	$(WAVE) bench sol
	$(WAVE) bench payload
	$(WAVE) bench rmt
	$(WAVE) bench rpc
	$(WAVE) bench udp
	$(WAVE) bench hostile
	@if [ "$$(id -u)" = 0 ]; then for what in stream echo apps demoted idle loss; do $(WAVE) bench tcp $$what || exit; done; \
		else echo "bench: wave bench tcp needs root, and is left out"; fi

site:
	cargo xtask site

release: setup
	cargo xtask release

# Exit code 4: a run has no result, for example because other processes disturbed it. The next runs start all the same.
soak: build
	$(WAVE) run scenarios/ladder.toml || test $$? -eq 4
	$(WAVE) run scenarios/agent-crash.toml || test $$? -eq 4
	$(WAVE) run scenarios/enclaves.toml || test $$? -eq 4
	$(WAVE) run scenarios/rocksdb-sol.toml || test $$? -eq 4
	$(WAVE) run scenarios/rpc-rocksdb.toml || test $$? -eq 4
	$(WAVE) reproduce all --check docs/reproduced.csv
	$(WAVE) fuzz --seeds 50000
	$(WAVE) fuzz udp --datagrams 10000000
	$(WAVE) fuzz tcp --seeds 100000
	$(WAVE) fuzz tcp --datapath laminar --seeds 100000
	WAVE_SECONDS=300 cargo test --release --locked --package wave --test memory -- --nocapture nothing_is_lost
	WAVE_DATAPATH=laminar cargo test --release --locked --package wave --test tcp_programs
	WAVE_SEEDS=200000 WAVE_CONNECTIONS=1000 WAVE_FIRST_CALLS=1000 WAVE_RELOADS=100 WAVE_SHARING=10000 WAVE_SHARING_KILLS=5000 PROPTEST_CASES=20000 cargo test --workspace --release --locked
