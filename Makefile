# What this repository can do. Everything needed is installed, fetched and built on the way; what takes
# long is kept in ${XDG_CACHE_HOME:-~/.cache}/vmprobe.
.POSIX:

XTASK = cargo run --quiet --package xtask --

help:
	@echo 'make build   the programs vmprobed and vmprobe, optimized, in target/release'
	@echo 'make demo    boot a stock Debian kernel and watch its probes over gRPC'
	@echo 'make test    all tests; writes target/conformance.json'
	@echo 'make lint    formatting, clippy, licences and advisories'
	@echo 'make bench   nothing yet'
	@echo 'make clean   remove what was built here (not the cache)'

setup:
	@deploy/setup.sh

build: setup
	cargo build --release

demo: setup
	@$(XTASK) demo

test: setup
	@$(XTASK) test

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny check; \
	else echo 'lint: cargo-deny is not installed, so licences and advisories are not checked'; fi

bench:
	@echo 'The benchmarks come with issue 3.'

clean:
	cargo clean

.PHONY: help setup build demo test lint bench clean
