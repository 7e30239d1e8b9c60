# Spillway. `make` lists the verbs.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

FUZZTIME     ?= 30s
CRASH_ROUNDS ?= 500
LEVEL        ?= quick
# The vulnerability database as a Go module, so that a check says the same tomorrow; raise it from time to time.
VULNDB       ?= golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018

# What go.mod says that the commands are built with. The standard library that a release holds is that one's, not this machine's.
BUILT_WITH := $(shell sed -n 's/^toolchain //p' go.mod)

TOOL := go tool -modfile=tools/go.mod

# Test binaries that take -rewrite: those that declare it, and those that link datadriven.
REWRITERS = $(shell grep -rlE '"rewrite"|cockroachdb/datadriven"' --include='*_test.go' --exclude-dir=e2e . | xargs -r -n1 dirname | sort -u)

# E2E=0 leaves the real systems out of make test.
E2E ?= 1

.PHONY: help demo check test e2e servers-up servers-down race fuzz bench golden lint crash fmt-check vet

help: ## list the verbs
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1 \2/p' $(MAKEFILE_LIST) | while read -r verb what; do printf '%-10s %s\n' "$$verb" "$$what"; done

demo: ## checkpoints that wait, overtake and switch; kill -9, restore, exact counts; and what lies in the files (under two minutes)
	./cmd/ckpt-run/demo.sh

check: fmt-check vet ## the quick loop: formatting, vet, short tests without -race
	go test -short ./...

# Without -race: larger bounds of the model check, every bit of the golden file, thousands of simulated jobs, and what measures time or memory.
test: fmt-check vet lint ## what CI runs: formatting, vet, linters, all tests with -race; counts what was left out
	@{ rc=0; \
	   go test -json -race -count=1 ./... || rc=1; \
	   SPILLWAY_SEEDS=2000 go test -json -count=1 -run 'Model|Flip|TestExperiment$$|TestExercises$$|FreezeIsShort|AllocatesNothing|TestSimulation$$' ./catalog ./format ./dataflow ./writer ./internal/attach || rc=1; \
	   go -C tools test -json -count=1 ./... || rc=1; \
	   [ "$(E2E)" = 0 ] || { e2e/browser/install.sh && e2e/servers/fetch.sh && go -C e2e test -json -count=1 -p 1 -timeout 30m ./...; } || rc=1; \
	   exit $$rc; } | go run -C tools ./testsum -left-out $(CURDIR)/build/left-out

e2e: ## only the tests against real systems: Flink, S3 servers, HDFS, a browser (part of test)
	e2e/browser/install.sh
	e2e/servers/fetch.sh
	go -C e2e test -count=1 -p 1 -timeout 30m ./...

servers-up: ## the S3 servers, for work by hand (SERVERS=... chooses)
	e2e/servers/up.sh $(SERVERS)

servers-down: ## and away again
	e2e/servers/down.sh

race: ## all tests with -race, nothing else
	go test -race ./...

fuzz: ## every fuzz target for FUZZTIME (30s)
	@grep -rHoE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' . | sed 's/:func /:/' | sort | while IFS=: read -r file name; do \
	   echo "== $$(dirname $$file) $$name"; \
	   go test -run='^$$' -fuzz="^$$name$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=1s "$$(dirname $$file)"; \
	 done

bench: ## the workloads against plain writes and reads, and Flink where Maven and a JDK are present (LEVEL=quick or full)
	bench/run.sh $(LEVEL)

golden: ## write the golden files anew; read the diff before you commit it
	$(if $(REWRITERS),go test $(REWRITERS) -rewrite,@echo no test writes golden files)

lint: ## golangci-lint and govulncheck, from tools/
	@mkdir -p build && rm -f build/left-out
	$(TOOL) golangci-lint run ./...
	@if ! GOTOOLCHAIN=$(BUILT_WITH) go version >/dev/null; then echo 'govulncheck: $(BUILT_WITH) could not be downloaded' | tee build/left-out; \
	 elif db=$$(go mod download -json $(VULNDB) | sed -n 's/.*"Dir": "\(.*\)",/\1/p') && [ -n "$$db" ]; then \
	   echo 'govulncheck ./... ($(BUILT_WITH))'; GOTOOLCHAIN=$(BUILT_WITH) $(TOOL) govulncheck -db "file://$$db/data/osv" ./...; \
	 else echo 'govulncheck: $(VULNDB) could not be downloaded' | tee build/left-out; fi

crash: ## the long crash tests: CRASH_ROUNDS (500) kill -9, a crash and an error at every operation, the large model checks
	SPILLWAY_CRASH=1 go test -timeout 180m ./...
	SPILLWAY_CRASH=1 go test -timeout 120m -count=1 ./examples/lines -run Crash -crash-rounds=$(CRASH_ROUNDS)

fmt-check: ## fail if gofmt would change a file
	@out=$$(find . -name '*.go' -not -path './build/*' -not -path '*/testdata/*' -exec gofmt -s -l {} +); \
	 [ -z "$$out" ] || { echo "gofmt -s -w these:"; echo "$$out"; exit 1; }

vet: ## go vet
	go vet ./...
	go -C e2e vet ./...
