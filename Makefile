# `make help` lists the targets. All of them work from a fresh clone with Go and make; those that need a Docker
# engine install or start one first.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO        ?= go
IMAGE     := boxfleet/demo:busybox
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Inputs for each fuzz target. A duration also works, but Go 1.26 sometimes reports its end as a failure
# (go.dev/issue/75804).
FUZZTIME  ?= 10000x
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.6.1
# Run two packages at once: they share one engine, and the machine may be small. The slowest package starts first.
PARALLEL  ?= 2
TESTFLAGS ?=

# Packages whose tests need neither an engine nor minutes. Those of jetstream and sdk start clusters.
FAST = $(shell $(GO) list ./... | grep -vE '/(integration|cmd|sdk|jetstream)(/|$$)|/worker/(docker|firewall|supervise)(/|$$)')
# Packages whose goroutines share the most state. Left out of the race run: tests that fail when they take longer than
# a limit in seconds, which the race detector's slowdown exceeds; tests that wait for elections most of the time; and the
# test of uploads in a cluster, during which the detector finds a race in the code of the NATS server.
RACE = ./jetstream/... ./stream ./coordinator/... ./supervisor/... ./worker ./worker/decide ./worker/output ./worker/streams \
	./worker/files
RACE_SKIP = TestADecisionLargerThanAMessageIsAppendedInParts|TestASandboxWithThousandsOfExecsFailsWithItsHost|$\
TestThousandsOfExecsOfALostHostEnd|TestAListOfPastExecsIsCompleteWithoutRepeats|$\
TestABulkStreamOverAFarLinkNeedsLargerWindows|$\
TestABlobIsCompleteOrRefusedWhileLeadersChange|TestStreamsSurviveAStormOfReconnects|TestStorageReportsWhereJetStreamIsDisabled|$\
TestGrowingToThreeReplicasLosesNothingWhereverItIsInterrupted|TestLeaderReadsWaitForAnElection|$\
TestANewFollowerInAClusterCatchesUpSoon|TestARestartOfTheServerUnderLoadLosesNothingAndRepeatsNothing|$\
TestALossOfTheStreamsLeaderUnderLoadLosesNothingAndRepeatsNothing|TestTheFirstRequestAfterAnOutageIsReceivedWithinASecond|$\
TestUploadsOfTheSameContentAtOnceLeaveOneObject|TestAFloodOfForgeriesChangesNothing|$\
TestAFloodOfOneTenantsRequestsDelaysNoOtherTenant|TestP1_ACoordinatorThatDiesInAFloodLosesNoRequest

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 22

.PHONY: build
build: ## build bin/boxfleet and bin/boxfleet-supervisor
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/boxfleet-supervisor ./cmd/boxfleet-supervisor
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/boxfleet ./cmd/boxfleet

.PHONY: package
package: ## build the Debian packages boxfleet and boxfleet-nats in bin
	VERSION='$(VERSION)' scripts/package

.PHONY: engine
engine: ## check for a Docker engine; as root on Debian, install and start one
	scripts/engine

.PHONY: image
image: engine ## build the small image for the demo, tests and benchmark
	scripts/image $(IMAGE)

.PHONY: registry
registry: ## check for the registry server that tests need, or unpack one
	@scripts/registry >/dev/null

.PHONY: tools
tools: ## check for the programs that tests need, or install them
	@scripts/tools

.PHONY: examples
examples: image build ## run the examples in docs/examples (needs Node and npm)
	npm install --silent --no-audit --no-fund --prefix bin/node nats@2.29.3
	BOXFLEET_NEED_NODE=1 NODE_PATH="$$PWD/bin/node/node_modules" $(GO) test ./integration -run TestTheExamplesInAnotherLanguageRun -count 1
	$(GO) test ./docs/examples/... -count 1

.PHONY: demo
demo: image build ## run a real build in a sandbox and print its history
	bin/boxfleet demo

.PHONY: lint
lint: ## go vet, staticcheck, formatting, import rules, and whether the documents match the code
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) test -count 1 .
	@unformatted="$$(gofmt -l $$(find . -name '*.go' -not -path './.*'))"; \
	if [[ -n "$$unformatted" ]]; then echo "not formatted, run gofmt -w on:" >&2; echo "$$unformatted" >&2; exit 1; fi

.PHONY: api
api: ## write docs/api.txt, the listing of the API
	$(GO) test -count 1 . -run TestAPIListing -update

.PHONY: test
test: image build tools lint registry ## run all tests
	@rm -rf bin/reports && mkdir -p bin
	BOXFLEET_TEST_REPORTS=$(CURDIR)/bin/reports scripts/scratch $(GO) test -count 1 -p $(PARALLEL) -timeout 30m $(TESTFLAGS) ./integration ./... 2>&1 | tee bin/test.log || { \
		echo; echo "failures (complete log: bin/test.log; report of each fleet: bin/reports):"; \
		grep -E '^ *--- FAIL|^FAIL|^panic:|^ {4,8}[a-z_]+_test\.go:[0-9]+:|^fatal error' bin/test.log | cut -c1-300 | tail -60; exit 1; }

.PHONY: test-fast
test-fast: ## run the tests that need no engine, for the inner loop; under two minutes
	$(GO) test -timeout 5m -p $(PARALLEL) $(TESTFLAGS) $(FAST)

.PHONY: test-race
test-race: ## run tests without an engine under the race detector (needs a C compiler)
	scripts/scratch $(GO) test -race -timeout 15m -p $(PARALLEL) -parallel 2 -skip '$(RACE_SKIP)' $(TESTFLAGS) $(RACE)

.PHONY: fuzz-short
fuzz-short: ## run each fuzz target with FUZZTIME inputs (10000x)
	scripts/fuzz $(FUZZTIME)

.PHONY: environments
environments: image tools ## check the whole conformance table on each environment of sdk/environment
	BOXFLEET_ENVIRONMENTS=all scripts/scratch $(GO) test ./integration ./sdk/environment/... -run 'Conformance|IsAnEnvironment' -count 1 \
		-timeout 15m -p $(PARALLEL) $(TESTFLAGS)

# The following take minutes and are not part of `make test`.

.PHONY: networks
networks: image tools ## create and remove 500 networks with their firewall rules on one engine; takes minutes
	BOXFLEET_NETWORKS=500 $(GO) test ./integration -run TestQ11_ManyNetworksOnOneHost -count 1 -v -timeout 15m

# Core scenarios: creates, execs, output, cancels, crashes of workers and coordinators, deletes, uploads and services.
CLUSTER = TestASandboxLivesItsWholeLife|TestAFleetWithThreeServersWorks|TestS1_|TestS8_|TestS16_|TestS18_|TestX6_|$\
TestX8_|TestX10_|TestX16_|TestX1_BytesOfAnyKindComeBackUnchanged|TestAnIDIsNeverUsedAgain|$\
TestARepeatedRequestGetsTheSameHandle|TestACopiedTreeArrivesAsItIs|TestAWorkerKilledDuringACreateOrADelete|$\
TestAWorkerKilledDuringAnExec|TestAWorkerKilledDuringAStopOrAResume|TestACoordinatorKilledDuringACreate|$\
TestACoordinatorKilledDuringAnExec|TestACoordinatorKilledDuringAChange|TestTheHashOfOutputSurvivesItsWorker|$\
TestExecsAndLogsOfAService|TestRequiredServicesGateReadyAndAreReachedByName|TestAWorkersRestartCostsNoService|$\
TestASandboxWithThousandsOfExecsIsDeleted

.PHONY: test-cluster
test-cluster: image build tools ## run the core scenarios of the integration tests on clusters of three NATS servers
	BOXFLEET_TEST_SERVERS=3 scripts/scratch $(GO) test ./integration -run '^($(CLUSTER))' -count 1 -v -timeout 30m $(TESTFLAGS)

# What depends on the engine: containers, networks, ports, images, limits, services, crashes and restarts.
ENGINE26 = TestASandboxLivesItsWholeLife|TestTheContainerIsAsTheSpecSays|TestS1_|TestS12_|TestS22_|TestX8_|TestX10_|$\
TestX18_|TestP8_|TestH1_|TestQ10_|TestQ14_|TestAnImportLeavesTheHostsImageNamesAlone|TestUnusedImagesAreRemovedAboveTheBound|$\
TestRequiredServicesGateReadyAndAreReachedByName|TestAWorkersRestartCostsNoService|TestAWorkerKilledDuringACreateOrADelete|$\
TestAWorkerKilledDuringAStopOrAResume|TestTheEngineIsStoppedAndStartedUnderAWorker|TestAnEngineLivesAndLeavesNothing

.PHONY: test-engine26
test-engine26: engine build tools registry ## run the tests that depend on the engine on Docker Engine 26, which this unpacks from Debian
	scripts/engine26 bash -c 'scripts/image $(IMAGE) && \
		$(GO) test ./integration ./integration/engines ./worker/supervise -run "^($(ENGINE26))" -count 1 -v \
		-timeout 30m -p $(PARALLEL) $(TESTFLAGS)'

.PHONY: files
files: image ## list, search and watch a directory with a million files, and carry a file of 10 GiB; takes minutes
	BOXFLEET_TEST_FILES=1000000 $(GO) test ./worker/supervise -count 1 -v -timeout 20m \
		-run 'TestFiles_(AHugeDirectoryNeedsNoMemory|ASparseFileTravelsWhole)'

.PHONY: endless
endless: image ## let programs write without end for a minute, to readers that are slow; takes two minutes
	BOXFLEET_TEST_ENDLESS=1m $(GO) test ./integration -run TestProgramsThatWriteWithoutEndHoldUpNobody -count 1 -v -timeout 10m

.PHONY: deep
deep: image ## remove a container with more nested directories than the engine has descriptors; takes a minute
	BOXFLEET_LEVELS=25000 $(GO) test ./worker/docker -run TestAContainerWithDeeplyNestedDirectories -count 1 -v -timeout 10m

.PHONY: packages-test
packages-test: image ## install the Debian packages, and boot machines with them in containers; needs root, takes minutes
	BOXFLEET_TEST_DEBIAN="$$(scripts/debian)" $(GO) test ./deploy -run 'Debian|Packages|Operating' -count 1 -v -timeout 20m

.PHONY: packages-test-short
packages-test-short: ## install, upgrade, remove and purge the Debian packages; needs root
	BOXFLEET_TEST_DEBIAN="$$(scripts/debian)" $(GO) test ./deploy -run TestThePackages -count 1 -v -timeout 10m

.PHONY: operate-demo
operate-demo: image ## run the commands of docs/operate.md on four machines that are booted in containers; needs root
	BOXFLEET_TEST_DEBIAN="$$(scripts/debian)" $(GO) test ./deploy -run Operating -count 1 -v -timeout 20m

.PHONY: compose-test
compose-test: image ## run a fleet from the images and the compose file; needs root, installs docker-compose on Debian
	@command -v docker-compose >/dev/null || { export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends docker-compose; } >&2
	BOXFLEET_TEST_COMPOSE=1 $(GO) test ./deploy -run Compose -count 1 -v -timeout 10m

# The releases that the upgrade test starts from, as commits. The first is the last release.
UPGRADE_FROM ?= 687b85d b8fc766
UPGRADE_TESTS ?= TestAFleetIsUpgradedAndGoesBackUnderLoad|TestAFleetWithCredentialsIsUpgradedAndGoesBackUnderLoad

.PHONY: upgrade-test
upgrade-test: image ## upgrade a fleet from each release in UPGRADE_FROM under load, and go back
	releases="$$(scripts/upgrade-from $(UPGRADE_FROM) | tr '\n' ' ')" && BOXFLEET_TEST_UPGRADE_FROM="$$releases" \
		scripts/scratch $(GO) test ./integration -run '$(UPGRADE_TESTS)' -count 1 -v -timeout 10m $(TESTFLAGS)

.PHONY: upgrade-test-short
upgrade-test-short: ## the same for a fleet with credentials, from the last release only
	$(MAKE) --no-print-directory upgrade-test UPGRADE_FROM='$(firstword $(UPGRADE_FROM))' \
		UPGRADE_TESTS=TestAFleetWithCredentialsIsUpgradedAndGoesBackUnderLoad

.PHONY: bench
bench: image build ## measure Boxfleet beside the bare engine; prints a table and writes raw samples as JSON
	$(GO) run ./integration/bench

.PHONY: bench-short
bench-short: image build ## the same with few samples: checks that it works, not how fast
	$(GO) run ./integration/bench -short

# Settings of `make load`; `go run ./integration/load -h` lists the program's own flags.
WORKERS   ?= 100
SANDBOXES ?= 1000
RATE      ?= 0
PROFILE   ?=
LOADFLAGS ?=

.PHONY: load
load: ## create SANDBOXES (1000) on simulated WORKERS (100), RATE per second or at once; PROFILE=dir, LOADFLAGS='-living 100000 -restart'
	$(GO) run ./integration/load -workers $(WORKERS) -sandboxes $(SANDBOXES) -rate $(RATE) -profile '$(PROFILE)' $(LOADFLAGS)

.PHONY: load-short
load-short: ## the same with few, a NATS restart and a fail-over: checks that it works, not how fast
	$(GO) run ./integration/load -short -workers 20 -sandboxes 200 -living 300 -over 300 -coordinators 2 -settle 1s -restart -failover -limit 2m

.PHONY: clean
clean: ## remove build results and what killed test runs left
	rm -rf bin
	scripts/clean
