# What this repository can do. Everything needed is installed, fetched and built on the way; what takes
# long is kept in ${XDG_CACHE_HOME:-~/.cache}/vmprobe.
.POSIX:

# How long `make fuzz` looks at each target, in seconds.
FUZZ_SECONDS = 60
# How long `make soak` takes, in seconds, and where its random numbers begin: anywhere, or SOAK_SEED=NUMBER.
SOAK_SECONDS = 3600
SOAK_SEED =
XTASK = cargo run --quiet --package xtask --

help:
	@echo 'make build   vmprobed, vmprobe and vmprobe-init, optimized, in target/release'
	@echo 'make deb     the Debian package target/deb/vmprobe.deb, of these'
	@echo 'make demo    boot a stock Debian kernel and watch its probes over gRPC'
	@echo 'make test    all tests; writes target/conformance.json'
	@echo 'make test-all  the same with every test in every lab; takes hours'
	@echo 'make lint    formatting, clippy, the contract of the protocol, licences and advisories'
	@echo 'make bench   measure; writes target/bench/report.json'
	@echo 'make soak    clients at random for SOAK_SECONDS (3600); writes target/soak.json'
	@echo 'make pictures  draw docs/pictures anew, from a demonstration'
	@echo 'make fuzz    look for bytes that break the engine, FUZZ_SECONDS (60) each way; needs nightly'
	@echo 'make clean   remove what was built here (not the cache)'

setup:
	@deploy/setup.sh

build: setup
	cargo build --release
	cargo rustc --release --package vmprobe-init --bin vmprobe-init -- -C target-feature=+crt-static

deb: build
	@$(XTASK) deb

demo: setup
	@$(XTASK) demo

test: setup
	@$(XTASK) test

test-all: setup
	@$(XTASK) test --all

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --quiet --package vmprobe-proto
	@if command -v cargo-deny >/dev/null; then cargo deny check; \
	else echo 'lint: cargo-deny is not installed, so licences and advisories are not checked'; fi

bench: setup
	@$(XTASK) bench

soak: setup
	@$(XTASK) soak --seconds $(SOAK_SECONDS) $(SOAK_SEED:%=--seed %)

pictures: setup
	@$(XTASK) pictures

# What is found on the way is kept outside the tree; only what breaks is in fuzz/artifacts.
fuzz: setup
	@command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	@cargo +nightly --version >/dev/null 2>&1 \
	|| { echo 'fuzz: the nightly toolchain is missing; rustup toolchain install nightly'; exit 1; }
	@for target in decode definitions devices emulate filters kernel_log relocate rings symbols types; do \
		found=fuzz/target/found/$$target; mkdir -p $$found; \
		cargo +nightly fuzz run --sanitizer none $$target $$found fuzz/corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=512 || exit; \
	done

clean:
	cargo clean

.PHONY: help setup build deb demo test test-all lint bench soak pictures fuzz clean
