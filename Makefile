# Tandem. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help build run test race lint fuzz bench cover chaos redis e2e-sglang clients ci

GO       ?= go
TOOL     := $(GO) tool -modfile=.ci/tools.mod
FUZZTIME ?= 30s
SEED     ?= 1
# Flags for go test, as in `make test TESTFLAGS='-race -shuffle=on'`.
TESTFLAGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/tandem
	$(GO) build -trimpath -o bin/tandem ./cmd/tandem

run: build ## a prefill/decode cluster of simulated engines behind Tandem, on port 30000
	./bin/tandem demo

test: ## all tests, the router's also as on other systems than Linux
	$(GO) test $(TESTFLAGS) ./...
	$(GO) test $(TESTFLAGS) -tags tandem_portable ./router

race: ## all tests under the race detector
	$(MAKE) test TESTFLAGS='-race -shuffle=on'

lint: ## gofumpt, vet, go fix, staticcheck, deadcode, house rules
	@out="$$($(TOOL) gofumpt -l .)"; [ -z "$$out" ] || { echo "not gofumpt-formatted:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags realengine,clients,redis ./integration/... ./pools/...
	$(GO) fix -diff ./...
	$(TOOL) staticcheck -tags realengine,clients,redis -checks 'all,-ST1000,-ST1016,-ST1020,-ST1021,-ST1022' ./...
	@out="$$($(TOOL) deadcode -test -tags realengine,clients,redis ./...)"; [ -z "$$out" ] || { echo "unreachable:"; echo "$$out"; exit 1; }
	@.ci/house-rules

fuzz: ## every fuzz target for FUZZTIME (30s)
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
	  done; done

bench: ## micro benchmarks, then Tandem beside nginx (needs nginx)
	$(GO) test -run '^$$' -bench . -benchmem ./pd/... ./bootstrap/... ./pools/...
	$(GO) run ./integration/load/bench $(BENCHFLAGS)

cover: ## test coverage, by function, in bin/cover.txt
	@mkdir -p bin
	$(GO) test -coverprofile bin/cover.out -coverpkg ./... ./...
	$(GO) tool cover -func bin/cover.out > bin/cover.txt
	@tail -1 bin/cover.txt

chaos: ## random failures under load for 5 minutes, from SEED (1), then a prefill killed under load
	$(GO) test ./integration/chaos -count=1 -v -timeout 15m -chaos.duration 5m -chaos.seed $(SEED)
	$(GO) test ./integration -count=1 -v -timeout 5m -run TestKillingOnePrefillOfFourUnderLoad -long

redis: ## sessions that routers share, over a real server (needs redis-server)
	$(GO) test -race -tags redis -count=1 -timeout 5m ./pools/policy/redisstore

clients: ## the openai packages against Tandem, and mini_lb beside it (needs node, python3)
	integration/clients/run.sh

e2e-sglang: build ## the suite over a real SGLang pair on CPU (10 GB of disk)
	integration/realengine/run.sh

ci: ## what CI runs, in its order
	.ci/run
