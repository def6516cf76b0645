# Everything but `lint`, and the C compiler `race` asks for, needs only Go.

GO       ?= go
FUZZTIME ?= 10s
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := -X main.version=$(VERSION)
PROGRAMS := router node apbus

# The name of a program, given the name of its folder below cmd.
binary = $(if $(filter apbus,$(1)),apbus,apbus-$(1))

# Published conformance data is not part of this repository.
export APBUS_CONFORMANCE ?= $(abspath ../shared/conformance)

# CI installs the linter below .ci/bin.
GOLANGCI ?= $(firstword $(wildcard .ci/bin/golangci-lint) golangci-lint)

.DEFAULT_GOAL := help

.PHONY: help run demo-loop build $(PROGRAMS:%=build-%) test conformance race fuzz bench bench-tasks bench-loop hostile chaos mutations golden lint deps $(PROGRAMS:%=deps-%) cover

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: build ## Start a router and two nodes on this machine, until Ctrl-C
	bin/apbus dev --bin bin --data .apbus

demo-loop: build ## Make calls for the loop to learn from, and show what it proposes, until Ctrl-C
	bin/apbus dev --bin bin --data .apbus/demo-loop --listen 127.0.0.1:0 --nats-listen 127.0.0.1:0 --demo-loop $(DEMO)

build: $(PROGRAMS:%=build-%) ## Build the programs into bin/

$(PROGRAMS:%=build-%): build-%:
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/$(call binary,$*) ./cmd/$*

test: ## Run every test
	$(GO) test -timeout 280s ./...

conformance: ## Run the published protocol cases; APBUS_CONFORMANCE names their folder
	@GO='$(GO)' .ci/conformance

race: ## Run every test under the race detector
	$(GO) test -race -timeout 15m ./...

fuzz: ## Fuzz every target for FUZZTIME each (default 10s)
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' .ci/fuzz

bench: ## Run every benchmark
	$(GO) test -run '^$$' -bench . -benchmem ./...

bench-tasks: build-router ## Run tasks through Apbus, Asynq and River side by side; needs redis-server and postgres
	cd bench/peers && $(GO) run . -router '$(CURDIR)/bin/apbus-router' $(PEERS)

bench-loop: ## A pass of the loop over 1,000,000 records of evidence in a real stream
	$(GO) test ./jetstream -run '^$$' -bench 'EvidencePass$$' -benchtime 1x -timeout 30m -evidence.records 1000000

hostile: ## A thousand passes of the loop with a hostile model, a process each call
	$(GO) test ./loop/backend -run 'TestHostileProcess$$' -count=1 -timeout 30m -v -hostile.seeds 1000

chaos: ## Submit 20,000 tasks while everything is killed, frozen and cut off
	$(GO) test ./integration -run 'TestChaos$$' -count=1 -timeout 10m -v -chaos.tasks 20000

mutations: ## Switch off what keeps tasks and the loop safe, one at a time: the tests must fail (MUTATIONS=-mutations.rows takes a third of the time)
	$(GO) test ./integration -run 'TestMutations$$' -count=1 -timeout 45m -v -mutations $(MUTATIONS)

golden: ## Rewrite the golden files; read the diff before you commit it
	@grep -rlE --include='*_test.go' 'flag\.Bool\("update"' . | xargs -r -n 1 dirname | sort -u | \
		while read -r dir; do echo "golden: $$dir"; $(GO) test -count=1 "$$dir" -update || exit 1; done

lint: ## Check formatting, go vet and golangci-lint
	@unformatted="$$(git ls-files -co --exclude-standard '*.go' | grep -v '/testdata/' | xargs -r gofmt -l)"; \
		if [ -n "$$unformatted" ]; then echo "not formatted:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet -tags interop ./...
	$(GOLANGCI) run ./...

deps: $(PROGRAMS:%=deps-%) ## Write what each program links to docs/deps/

# One platform, so that the lists do not depend on who writes them.
$(PROGRAMS:%=deps-%): deps-%:
	@mkdir -p docs/deps
	@echo "docs/deps/$(call binary,$*).txt"
	@list="$$(GOOS=linux GOARCH=amd64 CGO_ENABLED=0 $(GO) list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' ./cmd/$*)" && \
		printf '%s\n' "$$list" | LC_ALL=C sort > docs/deps/$(call binary,$*).txt

cover: ## Measure test coverage into coverage.html
	$(GO) test -timeout 280s -coverpkg=./... -coverprofile=coverage.out ./...
	$(GO) tool cover -html=coverage.out -o coverage.html
	@$(GO) tool cover -func=coverage.out | tail -n 1
