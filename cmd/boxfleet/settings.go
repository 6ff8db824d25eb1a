package main

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker"
)

// setting is one configuration key. settings lists all of them, and docs/configuration.md is checked against it.
type setting struct {
	key      string
	def      string
	meaning  string
	commands []string // commands with a flag for it; "" stands for all
	short    string
	set      func(value string) error
}

// flag returns the name of the setting's flag.
func (s *setting) flag() string {
	_, name, found := strings.Cut(s.key, ".")
	if !found {
		name = s.key
	}
	return strings.NewReplacer("_", "-", ".", "-").Replace(name)
}

// env returns the name of the setting's environment variable.
func (s *setting) env() string {
	return "BOXFLEET_" + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

// The commands that have a flag for a setting.
var (
	everyCommand     = []string{""}
	serverCommands   = []string{"up", "coordinator", "worker"}
	onlyUp           = []string{"up"}
	onlyCoordinator  = []string{"coordinator"}
	onlyWorker       = []string{"worker"}
	upAndCoordinator = []string{"up", "coordinator"}
	upAndWorker      = []string{"up", "worker"}
	storageSet       = []string{"set"} // boxfleet storage set
)

// settings returns every setting. Setting a value writes it to c.
func (c *config) settings() []setting {
	return slices.Concat(c.commonSettings(), c.upSettings(), c.coordinatorSettings(), c.hostSettings(), c.imageSettings(),
		c.accessSettings(), c.limitSettings(), c.networkSettings())
}

// commonSettings are the settings of every command.
func (c *config) commonSettings() []setting {
	return []setting{
		{"nats", "",
			"URLs of NATS, separated by commas; default: the `boxfleet up` on this machine, else " +
				"nats://127.0.0.1:4222",
			everyCommand, "", text(&c.NATS)},
		{"token", "", "token for NATS; prefer the file or the environment to the flag",
			everyCommand, "", text(&c.Token)},
		{"token_file", "",
			"file with the token for NATS, used if token is not set; read again for every connection attempt",
			everyCommand, "", text(&c.TokenFile)},
		{"creds", "", "NATS credentials file; read again for every connection attempt",
			everyCommand, "", text(&c.Creds)},
		{"tenant", protocol.DefaultTenant, "tenant to work in",
			everyCommand, "", text(&c.Tenant)},
		{"output", outputText, "output format: text or json",
			everyCommand, "o", oneOf(&c.Output, outputText, outputJSON)},
		{"deadline", "0s",
			"client timeout; the request itself continues, except that run deletes its sandbox; 0s: no limit",
			everyCommand, "", parsed(&c.Deadline, notNegative)},
		{"log_level", "warn", "debug, info, warn or error; logs go to stderr",
			everyCommand, "", oneOf(&c.LogLevel, logLevels...)},
		{"data_dir", "",
			"directory where up keeps its data and clients find its address; default: $XDG_DATA_HOME/boxfleet, else " +
				"~/.local/share/boxfleet",
			everyCommand, "", text(&c.DataDir)},
		{"health", "",
			"HOST:PORT where a server command serves /healthz: 200 if it is healthy, else 503 with the reason on " +
				"one line; default: not served",
			serverCommands, "", text(&c.Health)},
	}
}

// upSettings are the settings of up itself.
func (c *config) upSettings() []setting {
	return []setting{
		{"up.ballast", "64MiB",
			"disk space that up reserves in its data directory, at most a twentieth of the disk, so that it can " +
				"still end work when the disk is full",
			onlyUp, "", parsed(&c.Ballast, protocol.ParseBytes)},
		{"up.listen", defaultListen,
			"address where up's NATS listens; without a port, a free port is chosen, also when the default port is " +
				"in use",
			onlyUp, "", text(&c.Listen)},
		{"up.listen_insecurely", "false",
			"true: up may listen beyond loopback, where NATS has no TLS and the token gives anyone who reads it " +
				"access to every host",
			onlyUp, "", parsed(&c.ListenInsecurely, strconv.ParseBool)},
	}
}

// coordinatorSettings are the settings of a coordinator and of what it stores.
func (c *config) coordinatorSettings() []setting {
	k := &c.Coordinator
	return []setting{
		{"coordinator.name", "",
			"id of this coordinator, unique among coordinators; default: the machine's name and a random suffix",
			onlyCoordinator, "", text(&k.Name)},
		{"coordinator.cleanup_ttl", "360h0m0s",
			"delete stopped and failed sandboxes, and purge the histories of deleted ones, after this time",
			onlyCoordinator, "", parsed(&k.CleanupTTL, positive)},
		{"coordinator.host_forget_after", "0s",
			"forget a host that has been lost for this time, as boxfleet host forget does; 0s: never",
			onlyCoordinator, "", parsed(&k.ForgetAfter, notNegative)},
		{"coordinator.defaults", "",
			"YAML file with the sandbox defaults of each tenant, or of every tenant as *; see docs/spec.md",
			upAndCoordinator, "", text(&k.Defaults)},
		{"coordinator.replicas", "",
			"replicas of each stream; set 3 on the first coordinator of a cluster; default: unchanged, 1 for new " +
				"streams; to change it later, run boxfleet storage grow",
			onlyCoordinator, "", optional(parsed(&k.Replicas, copies))},
		{"coordinator.event_max_bytes", "",
			"size limit of the event log; new work is refused when less than an eighth of it, or less than 1GiB, is " +
				"free, whichever is smaller; default: unchanged, 8GiB when new",
			storageSet, "", optional(parsed(&k.EventMaxBytes, someBytes))},
		{"coordinator.log_max_age", "", "how long exec output is kept; default: unchanged, 360h when new",
			storageSet, "", optional(parsed(&k.LogMaxAge, positive))},
		{"coordinator.log_max_bytes", "", "how much output is kept in total; default: unchanged, 8GiB when new",
			storageSet, "", optional(parsed(&k.LogMaxBytes, someBytes))},
		{"coordinator.output_sandbox_bytes", "0B",
			"how much output is kept per sandbox; beyond it, the oldest is removed; 0: an eighth of log_max_bytes",
			onlyCoordinator, "", parsed(&k.OutputSandboxBytes, protocol.ParseBytes)},
		{"coordinator.output_tenant_bytes", "0B",
			"how much output is kept per tenant; beyond it, the sandboxes with the most output lose their oldest; " +
				"0: what fits in log_max_bytes",
			onlyCoordinator, "", parsed(&k.OutputTenantBytes, protocol.ParseBytes)},
		{"coordinator.blob_max_age", "",
			"how long uploaded trees are kept; longer while a sandbox waits for them; default: unchanged, 24h when " +
				"new",
			storageSet, "", optional(parsed(&k.BlobMaxAge, positive))},
		{"coordinator.blob_max_bytes", "",
			"size limit of uploaded trees; uploads beyond it are refused; default: unchanged, 4GiB when new",
			storageSet, "", optional(parsed(&k.BlobMaxBytes, someBytes))},
		{"coordinator.image_max_bytes", "",
			"size limit of imported image files; default: unchanged, 16GiB when new",
			storageSet, "", optional(parsed(&k.ImageMaxBytes, someBytes))},
		{"coordinator.segment_max_bytes", "",
			"size limit of the compressed older parts of histories; what does not fit stays in the event log; " +
				"default: unchanged, 8GiB when new",
			storageSet, "", optional(parsed(&k.SegmentMaxBytes, someBytes))},
		{"coordinator.table_max_bytes", "",
			"size limit of each table of ids, snapshots and images; default: unchanged, 1GiB when new",
			storageSet, "", optional(parsed(&k.TableMaxBytes, someBytes))},
		{"coordinator.requests", "",
			"how many requests may be queued; more are refused with resource_exhausted; default: unchanged, 100000 " +
				"when new",
			storageSet, "", optional(parsed(&k.Requests, between(1, math.MaxInt32)))},
		{"coordinator.max_active_execs", "1000",
			"how many execs of one sandbox may be active, 1 to 8192; more are refused with resource_exhausted",
			nil, "", parsed(&k.MaxActiveExecs, between(1, protocol.MaxActiveExecs))},
		{"coordinator.history_keep", "1000",
			"how many of the newest messages of a sandbox's history stay in the event log, at least 1",
			nil, "", parsed(&k.HistoryKeep, between(1, math.MaxInt32))},
		{"coordinator.history_batches", "5000",
			"compress the older messages of a live sandbox and move them out of the event log when there are more " +
				"than this many, at least 1",
			nil, "", parsed(&k.HistoryBatches, between(1, math.MaxInt32))},
		{"coordinator.history_bytes", "4MiB", "also move older messages when they exceed this size",
			nil, "", parsed(&k.HistoryBytes, someBytes)},
		{"coordinator.history_max_age", "0s",
			"how long the older parts of a history are kept after they leave the event log; 0s: as long as the " +
				"sandbox's history",
			nil, "", parsed(&k.HistoryMaxAge, notNegative)},
	}
}

// hostSettings are the settings of what a worker offers of its host.
func (c *config) hostSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.name", "",
			"id of this worker, unique in the fleet and stable for the host; default: the machine's name",
			onlyWorker, "", text(&w.Name)},
		{"worker.engine", "", "address of the Docker Engine; default: $DOCKER_HOST, else the local socket",
			upAndWorker, "", text(&w.Engine)},
		{"worker.state_dir", "",
			"absolute path of the directory that holds the sandbox directories; default: worker in data_dir",
			onlyWorker, "", text(&w.StateDir)},
		{"worker.supervisor", "", "path of the boxfleet-supervisor binary; default: next to the boxfleet binary",
			upAndWorker, "", text(&w.Supervisor)},
		{"worker.slots", "100", "maximum number of sandboxes on the host",
			upAndWorker, "", parsed(&w.Slots, strconv.Atoi)},
		{"worker.cpu", "0", "CPU cores to offer; 0: all of the host",
			upAndWorker, "", parsed(&w.CPU, parseFloat)},
		{"worker.memory", "0B", "memory to offer, such as 4GiB; 0: nine tenths of the host's memory",
			upAndWorker, "", parsed(&w.Memory, protocol.ParseBytes)},
		{"worker.labels", "", "labels of the host, as K=V",
			onlyWorker, "", list(&w.Labels)},
		{"worker.defaults", "", "YAML file with this worker's sandbox defaults; see docs/spec.md",
			onlyWorker, "", text(&w.Defaults)},
	}
}

// imageSettings are the settings of how a worker pulls and removes images.
func (c *config) imageSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.images.pull_stall", "2m0s", "abort an image pull that makes no progress for this time",
			onlyWorker, "", parsed(&w.Images.PullStall, positive)},
		{"worker.images.pre_pull", "",
			"images to pull in the background, before a sandbox needs them, and to keep",
			upAndWorker, "", list(&w.Images.PrePull)},
		{"worker.images.high_water", "85",
			"percentage of the engine's file system, in bytes or inodes, above which the worker removes unused " +
				"images that it pulled; 100: never",
			onlyWorker, "", parsed(&w.Images.HighWater, strconv.Atoi)},
		{"worker.images.low_water", "75", "stop removing images below this percentage",
			onlyWorker, "", parsed(&w.Images.LowWater, strconv.Atoi)},
		{"worker.images.max_bytes", "0B",
			"size limit of the images that the worker pulled, in use or not; above it, unused ones are removed; 0: " +
				"no limit",
			onlyWorker, "", parsed(&w.Images.MaxBytes, protocol.ParseBytes)},
		{"worker.images.check_cached", "false",
			"true: ask the registry before each use of an image that came from one, so that a cached image grants " +
				"no permission to use it",
			onlyWorker, "", parsed(&w.Images.CheckCached, strconv.ParseBool)},
		{"worker.images.registries", "docker.io,public",
			"registries to pull images from: docker.io, a host or host:port as in references, or public, which " +
				"means any registry at a public address, pulled by the worker itself; registries on a private network " +
				"must be named",
			upAndWorker, "", list(&w.Images.Registries)},
		{"worker.images.docker_config", "",
			"directory of the Docker configuration with registry credentials; default: $DOCKER_CONFIG, else " +
				"~/.docker",
			upAndWorker, "", text(&w.Images.DockerConfig)},
	}
}

// accessSettings are the settings of what sandboxes may use of a host.
func (c *config) accessSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.mounts.allow", "",
			"host directories that sandboxes may mount: PATH or PATH:ro read-only, PATH:rw also writable; default: " +
				"none",
			upAndWorker, "", list(&w.AllowMounts)},
		{"worker.tools", "",
			"built-in tools that sandboxes may have, including the files and credentials of the worker's user: " +
				"claude, codex, opencode, git, uv, npm, apt, or all; default: none",
			upAndWorker, "", list(&w.Tools)},
		{"worker.tools_home", "",
			"home directory with the files of those tools; default: the home of the worker's user",
			upAndWorker, "", text(&w.ToolsHome)},
		{"worker.profiles", "hardened", "capability profiles that sandboxes may choose: hardened, standard",
			upAndWorker, "", list(&w.Profiles)},
		{"worker.service_profiles", "hardened,standard",
			"capability profiles that services may choose; without standard, a service must name hardened",
			upAndWorker, "", someOf(&w.ServiceProfiles, protocol.ProfileHardened, protocol.ProfileStandard)},
		{"worker.runtimes", "",
			"OCI runtimes of the engine that sandboxes may choose; default: none, only the engine's default runtime",
			upAndWorker, "", list(&w.Runtimes)},
	}
}

// limitSettings are the limits that a worker enforces.
func (c *config) limitSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.max_disk", "95",
			"percentage of the engine's and the worker's disks that may be in use; a fuller host takes no new " +
				"sandboxes",
			onlyWorker, "", parsed(&w.Watermarks.Disk, strconv.Atoi)},
		{"worker.max_inodes", "95", "percentage of the inodes of those disks that may be in use",
			onlyWorker, "", parsed(&w.Watermarks.Inodes, strconv.Atoi)},
		{"worker.max_memory", "97",
			"percentage of the host's memory that may be in use, as the kernel estimates it",
			onlyWorker, "", parsed(&w.Watermarks.Memory, strconv.Atoi)},
		{"worker.max_pids", "90", "percentage of the host's processes and threads that may be in use",
			onlyWorker, "", parsed(&w.Watermarks.PIDs, strconv.Atoi)},
		{"worker.disk_low", "0B",
			"when a disk of the engine or the worker has less free space than this, at most half the disk, stop the " +
				"sandbox that fills it, with reason disk_full; 0: a tenth of the disk, at most 2GiB",
			upAndWorker, "", parsed(&w.DiskLow, protocol.ParseBytes)},
		{"worker.disk_reserve", "0B",
			"disk space that the worker reserves, at most a tenth of its disk, to write records and delete " +
				"sandboxes when the disk is full; 0: a fiftieth of the disk, at most 32MiB",
			upAndWorker, "", parsed(&w.DiskReserve, protocol.ParseBytes)},
		{"worker.output_burst", "256MiB",
			"output that one sandbox may publish without a rate limit; processes are never slowed down, because " +
				"output goes to the host first",
			onlyWorker, "", parsed(&w.OutputBurst, someBytes)},
		{"worker.output_rate", "8MiB",
			"output per second that one sandbox may publish after its burst, which refills at the same rate",
			onlyWorker, "", parsed(&w.OutputRate, someBytes)},
		{"worker.crash_window", "5m0s",
			"when a primary command or service keeps ending for this time without once running for crash_guard, do " +
				"not restart it: its sandbox or the service fails",
			onlyWorker, "", parsed(&w.CrashWindow, positive)},
		{"worker.crash_guard", "30s", "a command that has run for this time is not in a crash loop",
			onlyWorker, "", parsed(&w.CrashGuard, positive)},
		{"worker.reap_dry_run", "false",
			"true: only report leftovers of ended sandboxes and bridges without a network; do not remove them",
			onlyWorker, "", parsed(&w.ReapDryRun, strconv.ParseBool)},
	}
}

// networkSettings are the settings of the networks of sandboxes.
func (c *config) networkSettings() []setting {
	w := &c.Worker
	return []setting{
		{"worker.network_pool", "10.201.0.0/16", "IPv4 prefix of the sandbox networks",
			upAndWorker, "", text(&w.NetworkPool)},
		{"worker.firewall", "required",
			"required: take no sandbox unless nftables isolates its network; off: do not isolate networks, and take " +
				"only sandboxes with network internet",
			upAndWorker, "", oneOf(&w.Firewall, firewallRequired, protocol.FirewallOff)},
		{"worker.deny_networks", "", "IPv4 ranges that no sandbox may reach, whatever its spec allows",
			upAndWorker, "", list(&w.DenyNetworks)},
		{"worker.allow_networks", "",
			"private IPv4 ranges that specs may allow with network: allow; default: none",
			upAndWorker, "", list(&w.AllowNetworks)},
		{"worker.connections", strconv.Itoa(worker.DefaultConnections),
			"connections beyond its own network that the containers of one sandbox may have at a time, at least 64",
			upAndWorker, "", parsed(&w.Connections, between(64, math.MaxInt32))},
		{"worker.pids", strconv.Itoa(worker.DefaultMostPIDs),
			"maximum number of processes and threads that a spec may request for one container",
			upAndWorker, "", parsed(&w.PIDs, between(protocol.DefaultPIDs, protocol.MaxPIDs))},
		{"worker.ports", worker.DefaultPorts,
			"loopback ports of the host that sandboxes may publish, as FIRST-LAST",
			upAndWorker, "", text(&w.Ports)},
		{"worker.dns", "", "IPv4 name servers for sandboxes; default: the host's, except metadata addresses",
			upAndWorker, "", list(&w.DNS)},
	}
}
