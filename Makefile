# The two commands of a newcomer: `make quick` (main job) and `make test`. Both set up what they need.
SHELL := /bin/bash
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin:/sbin

.PHONY: fleet-test test-long publications publications-lab publications-pages quick seeds setup test test-setup lint crates unit linux lab lab-setup docker-rtt nfv systemd-test bench bench-judge bench-vms format wheel release site

quick: setup
	planewise quick

setup:
	@scripts/setup

# Measurements and the lab's hosts mostly wait: what needs neither runs beside them, in the time that they leave.
test: test-setup
	scripts/beside '$(LINUX) -m "not apart and not long" && make lab-setup && $(LAB)' \
	  'make lint crates && $(UNIT) && scripts/apart $(LINUX) -m apart'

# Faults and designs at full length; `make test` runs shorter versions of them.
test-long: lab-setup
	pytest -q -m long tests/linux tests/lab tests/vm

test-setup:
	@scripts/setup test

lint: test-setup
	cargo fmt --check
	cargo clippy -q --workspace --all-targets -- -D warnings
	ruff format --check -q .
	ruff check -q .
	mypy

# Property tests draw the same cases each time; `make seeds` draws new ones, ROUNDS times.
UNIT := pytest -q -n 2 --dist loadfile tests/unit
unit: crates
	$(UNIT)

crates: test-setup
	cargo test -q --workspace
	scripts/static cargo test -q -p pw-sriov --test scenarios --no-run # tests/lab runs them on its kernel

ROUNDS ?= 20
seeds: test-setup
	for round in $$(seq $(ROUNDS)); do \
	  PLANEWISE_NEW_SEEDS=1 cargo test -q --workspace && \
	  PLANEWISE_NEW_SEEDS=1 pytest -q -n 2 --dist loadfile tests/unit -m hypothesis || exit; done

LINUX := pytest -q tests/linux
linux: test-setup
	$(LINUX)

# The node agent against a real API server, with a real kubelet, and on a lab's host with its VFs. What is
# built is kept: twenty minutes the first time on two idle cores. These tests are skipped, and say so,
# where this was never run.
fleet-test: lab-setup
	scripts/fleet-binaries node
	cd crates/kube && cargo fmt --check && cargo clippy -q --all-targets -- -D warnings && \
	  cargo test -q && cargo build -q --bins --examples --features simulated
	FEATURES=simulated python packaging/agent_image.py dist
	PLANEWISE_PODS=1 pytest -q tests/fleet tests/lab/test_pods.py

bench: test-setup
	python benches/fidelity.py
	python benches/generators.py
	python benches/exact.py

# Two virtual servers with SR-IOV NICs, and virtual machines as guests; PLANEWISE_NO_LAB=1 skips them
# where QEMU is not allowed.
LAB := pytest -q tests/lab tests/vm
lab: lab-setup
	$(LAB)

lab-setup:
	@if [ -n "$$PLANEWISE_NO_LAB" ]; then scripts/setup test; else scripts/setup test lab vms; fi

# planewised under its own unit on a booted Debian beside Docker, libvirt and DPDK, and disturbed there: up to an
# hour on two cores, and some more the first time, which makes the Debian.
systemd-test:
	@scripts/setup systemd
	PLANEWISE_SYSTEMD=1 pytest -v tests/systemd

# Throughput of chains of network functions by length, path, plane and frame size; no NIC is needed.
nfv:
	@scripts/setup nfv
	planewise run experiments/nfv-chains.yaml

bench-vms:
	@scripts/setup vms
	python benches/vms.py

# RTT between Docker containers on bridges and VFs, on two virtual servers, from nothing to the report.
docker-rtt:
	@scripts/setup lab
	planewise run experiments/docker-rtt-lab.yaml --lab

# Sizes of the tables: searches a case, replays of each recording, synthetic systems a kind. The
# documented ones come from RUNS=1000 SEEDS=4 SYSTEMS=30 and take hours; 2, 1 and 1 some minutes.
RUNS ?= 20
NOISE ?= 0.01,0,0.03
SEEDS ?= 5
SYSTEMS ?= 20
bench-judge: test-setup
	python benches/judge.py --systems $(RUNS) --noise $(NOISE)
	python benches/judge_replay.py --seeds $(SEEDS) --synthetic $(SYSTEMS)

# The pages of docs/results: what the publications claim, from the data that they published (DATA: a folder
# with nfv_brief and pastrami) and from runs, which are resumed. On an idle machine about forty minutes, most
# of them PASTRAMI's campaign; the lab's designs take forty more.
PAPERS := runs/publications
measured = run=$(PAPERS)/$(notdir $(1)); grep -qs '"status": *"done"' $$run/run.json || \
  if test -e $$run/run.json; then planewise run --resume $$run $(2); \
  else planewise run experiments/$(1).yaml $(2) --out $$run; fi
publications:
	@scripts/setup vms
	$(call measured,publications/kvm-rtt)
	$(call measured,publications/docker-frequency)
	planewise run experiments/pastrami-here.yaml --out $(PAPERS)-pastrami
	$(MAKE) publications-pages

publications-lab:
	@scripts/setup vms lab
	$(call measured,docker-rtt-lab,--lab)
	$(call measured,publications/flexvf-latency,--lab)
	$(call measured,publications/flexvf-switch,--lab)
	$(call measured,publications/flexvf-groups,--lab)
	$(call measured,publications/nfv-lab,--lab)
	$(MAKE) publications-pages

publications-pages:
	planewise publications $(PAPERS)*/*/ $(if $(DATA),--tables $(DATA)/nfv_brief --recordings $(DATA)/pastrami) -o docs/results

format:
	cargo fmt
	ruff format -q .
	ruff check -q --fix .

wheel: setup
	@scripts/static maturin build --release -o dist

# What people install, from the last commit, into dist/ (docs/guide/install.md).
release:
	@scripts/setup release
	@packaging/release dist

# The documentation as a site: target/site/index.html, which needs no server.
site: test-setup
	NO_MKDOCS_2_WARNING=1 mkdocs build -q --strict -f packaging/site/mkdocs.yml
